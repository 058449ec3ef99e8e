"""Laws that a mistake is out of reach of: left out only where what runs is the same code."""

import pytest
import torch

from attnspec.conformance.reach import Reach, has_steps, noting

ONE = torch.ones(1, 1, 1, 1)


class Base:
    """An attention of two steps, of which the second is not always taken."""

    factor = 1.0

    def __call__(self, query, key, value, is_causal=False):
        out = self.weigh(value)
        return self.hide(out) if is_causal else out

    def weigh(self, value):
        """Taken by each call."""
        return value * self.factor

    def hide(self, out):
        """Taken by causal calls."""
        return out


class Weighs(Base):
    def weigh(self, value):
        return -value


class Hides(Base):
    def hide(self, out):
        return self.fill(out)

    def fill(self, out):
        """Unknown to the base."""
        return 0 * out


class AlsoHides(Base):
    def hide(self, out):
        return 2 * out


class HidesFurther(Hides):
    def fill(self, out):
        return 3 * out


class Scaled(Base):
    factor = 2.0


class Searched(Base):
    def __getattr__(self, name):
        raise AttributeError(name)


class Static(Base):
    @staticmethod
    def hide(out):
        return 4 * out


class Keeping(Base):
    def __init__(self):
        self.kept = []


class Other:
    def __call__(self, query, key, value, is_causal=False):
        return value


def learned(*calls, by=Hides):
    """What is known after some calls of a class."""
    attention, reach = by(), Reach()
    noted, steps = noting(attention)
    for options in calls:
        noted(ONE, ONE, ONE, **options)
    reach.learn("law", attention, steps, 1.5)
    return reach


@pytest.mark.parametrize("kind", [Base, Hides, AlsoHides, HidesFurther])
def test_what_takes_no_overridden_step_is_not_tried_again(kind):
    assert learned({}).known("law", kind()) == 1.5
    assert learned({}).known("another-law", kind()) is None


@pytest.mark.parametrize("kind", [Weighs, Scaled, Searched, Static, Keeping, Other])
def test_it_is_tried_on_whatever_may_run_otherwise(kind):
    assert learned({}).known("law", kind()) is None


def test_what_is_to_be_found_out_is_asked_where_other_code_runs():
    reach, heard = Reach(), []

    def ask(attention):
        heard.append(type(attention).__name__)
        return attention(ONE, ONE, ONE)

    plain = Keeping()
    for each in (Hides(), AlsoHides(), Weighs(), plain, plain):
        assert torch.equal(reach.find("plain", each, ask), each(ONE, ONE, ONE))
    assert heard == ["Hides", "Weighs", "Keeping", "Keeping"]


def test_it_is_tried_where_it_took_the_overridden_step_of_either():
    taken = learned({"is_causal": True})
    assert taken.known("law", AlsoHides()) is None
    assert taken.known("law", Base()) is None
    further = learned({"is_causal": True}, by=HidesFurther)
    assert further.known("law", Hides()) is None


def test_a_further_mistake_in_the_same_class_shares_what_that_class_runs():
    by_further = learned({}, by=HidesFurther)
    assert by_further.known("law", Hides()) == by_further.known("law", AlsoHides()) == 1.5


def test_what_shares_no_step_is_no_base():
    assert learned({}, by=Base).known("law", Hides()) is None


def test_what_is_no_attention_of_steps_is_always_tried():
    assert not has_steps(lambda query, key, value: value)
    assert not has_steps(Keeping())
    assert not has_steps(None)
    assert has_steps(Hides())


def test_noting_changes_no_answer():
    noted, steps = noting(Hides())
    assert torch.equal(noted(ONE, ONE, ONE), Hides()(ONE, ONE, ONE))
    assert steps == {"__call__", "weigh"}
    noted(ONE, ONE, ONE, is_causal=True)
    assert steps == {"__call__", "weigh", "hide", "fill"}
    without = Keeping()
    assert noting(without) == (without, set())


def test_a_step_that_cannot_note_that_it_ran_is_left_as_it_is():
    noted, steps = noting(Static())
    assert noted(ONE, ONE, ONE, is_causal=True) == 4
    assert steps == {"__call__", "weigh"}
    # what overrides it may run unnoticed
    changed = type("Changed", (Static,), {"hide": Hides.hide})
    further = type("Further", (Static,), {})
    reach = learned({"is_causal": True}, by=further)
    assert reach.known("law", Static()) == 1.5
    assert reach.known("law", changed()) is None

"""Laws that a mistake is out of reach of: left out only where what runs is the same code."""

import pytest
import torch

import attnspec.conformance.mutants  # noqa: F401  (registers them)
from attnspec.conformance import kills as trial
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.reach import Reach, has_steps, noting
from attnspec.spec import Extra, Feature, Implementation

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


def claiming(attention, **claims):
    return Implementation(name=type(attention).__name__.lower(), attention=attention, **claims)


def learned(*calls, by=Hides):
    """What is known after a law that made some calls of a class and passed."""
    subject, steps, reach = claiming(by()), set(), Reach()
    noted = noting(subject, steps)
    for options in calls:
        noted.attention(ONE, ONE, ONE, **options)
    reach.learn("law", subject, steps, 1.5)
    return reach


@pytest.mark.parametrize("kind", [Base, Hides, AlsoHides, HidesFurther, Static])
def test_a_law_that_takes_no_overridden_step_is_not_tried_again(kind):
    assert learned({}).seconds("law", claiming(kind())) == 1.5


@pytest.mark.parametrize("kind", [Weighs, Scaled, Searched, Keeping, Other])
def test_a_law_is_tried_on_whatever_may_run_otherwise(kind):
    assert learned({}).seconds("law", claiming(kind())) is None


def test_a_law_is_tried_where_it_took_the_overridden_step_of_either():
    taken = learned({"is_causal": True})
    assert taken.seconds("law", claiming(AlsoHides())) is None
    assert taken.seconds("law", claiming(Base())) is None
    by_base = learned({}, {"is_causal": True}, by=Base)
    assert by_base.seconds("law", claiming(Base())) == 1.5
    assert by_base.seconds("law", claiming(Hides())) is None


def test_a_further_mistake_in_the_same_class_shares_what_that_class_runs():
    taken = learned({"is_causal": True})
    assert taken.seconds("law", claiming(HidesFurther())) is None
    assert taken.seconds("law", claiming(Hides())) == 1.5


@pytest.mark.parametrize(
    "claims",
    [
        {"features": frozenset({Feature.MASK})},
        {"dtypes": (torch.float64,)},
        {"supports": lambda case: None},
        {"extras": frozenset({Extra.COMPILE})},
    ],
)
def test_a_law_is_tried_where_other_claims_bring_other_cases(claims):
    assert learned({}).seconds("law", claiming(Hides(), **claims)) is None
    assert learned({}).seconds("another-law", claiming(Hides())) is None


def test_what_is_no_attention_of_steps_is_always_tried():
    assert not has_steps(claiming(lambda query, key, value: value))
    assert not has_steps(claiming(Keeping()))
    assert not has_steps(planted()["POS-05"].subject)
    assert has_steps(claiming(Hides()))


def test_noting_changes_no_answer():
    subject, steps = claiming(Hides()), set()
    noted = noting(subject, steps)
    assert torch.equal(noted.attention(ONE, ONE, ONE), subject.attention(ONE, ONE, ONE))
    assert steps == {"__call__", "weigh"}
    noted.attention(ONE, ONE, ONE, is_causal=True)
    assert steps == {"__call__", "weigh", "hide", "fill"}
    assert (noted.name, noted.features) == (subject.name, subject.features)


def test_a_step_that_cannot_note_that_it_ran_is_left_as_it_is():
    steps = set()
    noted = noting(claiming(Static()), steps)
    assert noted.attention(ONE, ONE, ONE, is_causal=True) == 4
    assert steps == {"__call__", "weigh"}
    # what overrides it may run unnoticed
    reach = learned({"is_causal": True}, by=Static)
    assert (
        reach.seconds("law", claiming(type("Changed", (Static,), {"hide": Hides.hide})())) is None
    )


IDS = (
    "own-window-sides-swapped",
    "own-window-zero-is-none",
    "own-grad-mask-mean",
    "own-grad-mask-alone",
)
NAMES = (
    "output-equals-the-definition",
    "a-window-shows-exactly-its-keys",
    "gradients-are-those-of-the-definition",
    "the-gradient-of-a-mask-is-summed-where-it-broadcasts",
)


def test_what_is_left_out_changes_no_verdict(monkeypatch):
    laws = {name: law for name, law in trial._laws().items() if name in NAMES}
    monkeypatch.setattr(trial, "_laws", lambda: laws)
    monkeypatch.setattr(trial, "_styles", lambda subject: {})
    monkeypatch.setattr(trial, "_likeness", lambda *_: ((), ()))
    plain, tried = trial._try, []

    def counted(law, subject, effort):
        tried.append(law.name)
        return plain(law, subject, effort)

    monkeypatch.setattr(trial, "_try", counted)

    def told(id):
        found = trial.kills(planted()[id])
        return found.pinned, found.survived, found.silent, found.examples

    alone = []
    for id in IDS:
        monkeypatch.setattr(trial, "_REACH", Reach())
        alone.append(told(id))
    whole = len(tried)
    tried.clear()
    monkeypatch.setattr(trial, "_REACH", Reach())
    assert [told(id) for id in IDS] == alone
    assert len(tried) < whole

"""Few shapes: what laws read in the sizes of a case stays, and the shapes are few."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from attnspec.conformance import laws
from attnspec.conformance.attention.decoding.session import Append, Reorder, Session
from attnspec.conformance.attention.few_shapes import LONGEST, with_few_shapes
from attnspec.conformance.attention.subject import Subject
from attnspec.implementations import load
from attnspec.spec import Case, Implementation

LENGTHS = st.sampled_from((0, 1, 2, 3, 5, 7, 16, 17, 33, 64, 65, 129, 301, 1100))
WIDTHS = st.sampled_from((0, 1, 4, 32, 65, 256))
CASES = st.builds(
    lambda kv_heads, group, **sizes: Case(heads=kv_heads * group, kv_heads=kv_heads, **sizes),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    batch=st.integers(0, 3),
    queries=LENGTHS,
    keys=LENGTHS,
    d_head=WIDTHS,
    d_value=WIDTHS,
)
SIZES = ("batch", "heads", "kv_heads", "queries", "keys", "d_head", "d_value")


def shape_of(case):
    return tuple(getattr(case, name) for name in SIZES)


@given(CASES)
def test_relations_of_sizes_stay(case):
    few = with_few_shapes(case)
    assert (few.queries > few.keys) == (case.queries > case.keys)
    assert (few.queries < few.keys) == (case.queries < case.keys)
    assert few.features == case.features
    for name in SIZES:
        assert bool(getattr(few, name)) == bool(getattr(case, name))
    for name in ("queries", "keys"):
        before, after = getattr(case, name), getattr(few, name)
        assert after == before or before <= LONGEST
        assert (after == 1) == (before == 1) or case.queries != case.keys
    assert few.keys <= few.d_value or not case.d_value or few.keys > LONGEST
    assert with_few_shapes(few) == few


def test_what_no_shape_holds_stays():
    case = Case(queries=33, dtype=torch.bfloat16, is_causal=True, window=(3, 0), seed=7)
    few = with_few_shapes(case)
    assert few.but(**{name: getattr(case, name) for name in SIZES}) == case


def test_a_session_keeps_the_batch_elements_that_its_steps_name():
    session = Session(batch=3, d_head=4, d_value=4, steps=(Append(2), Reorder((2, 0, 1))))
    few = with_few_shapes(session)
    assert (few.batch, few.steps) == (3, session.steps)
    assert few.d_head == 32


def test_pinned_cases_of_all_laws_have_few_shapes():
    pinned = [case for law in laws.load().values() for case in law.pinned if isinstance(case, Case)]
    shapes = set(map(shape_of, map(with_few_shapes, pinned)))
    few = [each for each in shapes if all(each) and max(each) <= LONGEST]
    assert 15 < len(few) <= 30
    assert len(shapes) < len(set(map(shape_of, pinned))) / 3


def test_an_implementation_that_compiles_each_shape_is_tried_with_them():
    eager = load("eager").attention
    plain = Implementation(name="it", attention=eager)
    compiled = Implementation(name="it", attention=eager, compiles_each_shape=True)
    case = Case(batch=3, heads=5, kv_heads=5, queries=9, keys=9, d_head=7, d_value=7)
    assert Subject(plain).fit(case) == case
    assert Subject(compiled).fit(case) == with_few_shapes(case) != case

"""A part of a call: its results are those of the whole call."""

import pytest
import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.part import Part
from attnspec.spec import Case, Grouping, Mask, MaskKind, MaskPattern, MaskShape, Profile

BASE = Case(
    batch=3, heads=6, kv_heads=3, queries=4, keys=5, d_head=2, d_value=2, dtype=torch.float32
)
PLACES = (torch.tensor([2, 0]), torch.tensor([1, 2]))


@pytest.mark.parametrize("grouping", Grouping)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "window": (1, 0), "softcap": 2.0},
        {"sinks": True, "alibi": True},
        *(
            {"mask": Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIASED, shape=shape)}
            for shape in MaskShape
        ),
    ],
)
def test_a_part_has_the_results_of_the_whole(grouping, options):
    profile = Profile(grouping=grouping)
    call = draw(BASE.but(**options))
    part = Part.of(call, *PLACES, grouping)
    assert not part.is_whole
    assert part.heads.tolist() == (
        [1, 2, 4, 5] if grouping is Grouping.INTERLEAVED else [2, 3, 4, 5]
    )
    whole, few = expect(call, profile), expect(part.call(call), profile)
    assert few.out.shape == (2, 4, 4, 2)
    assert torch.equal(few.out, part.of_heads(whole.out))
    assert torch.equal(few.lse, part.of_heads(whole.lse))
    other = Part.of(call, torch.tensor([0]), torch.tensor([0]), grouping)
    assert not torch.equal(expect(other.call(call), profile).out[:, :1], few.out[:1, :1])


def test_all_of_a_call_is_the_call_itself():
    call = draw(BASE)
    part = Part.of(call, torch.arange(3), torch.arange(3), Grouping.CONSECUTIVE)
    assert part.is_whole
    assert part.call(call) is call


def test_outside_of_a_part_its_gradients_are_left_out():
    call = draw(BASE)
    part = Part.of(call, torch.tensor([1]), torch.tensor([0]), Grouping.CONSECUTIVE)
    of_queries, of_keys = (
        part.outside(torch.ones(3, n, 1, 1), name) for n, name in ((6, "query"), (3, "key"))
    )
    assert of_queries.sum() == 18 - 2
    assert of_queries[1, :2].sum() == 0
    assert of_keys.sum() == 9 - 1
    assert of_keys[1, 0].sum() == 0

"""The reference against the cases of ONNX's operator `Attention`, versions 23 to 25.

`python -m nox -s frameworks -- onnx` runs it where the `onnx` package is installed. The package
computes the expected outputs with its own reference evaluator, in the storage type of the case.

The contract has one output, or two with the log-sum-exp, and one call without state. It cannot
express, and these tests do not compare:

- `qk_matmul_output`: the scores at one of four steps, as a further output;
- `present_key` and `present_value`: the keys and values joined with those of the cache;
- `softmax_precision`: the type of the softmax, which is a matter of the implementation's rounding.

The rest of a case is expressed here in the terms of the contract:

- inputs (batch, length, heads · channels) are split into heads;
- `past_key` and `past_value` precede the keys and values;
- a mask with fewer columns than keys hides the others;
- `nonpad_kv_seqlen`, the number of keys of each batch element, is a mask of keys;
- a causal diagonal or window whose offset is a number of earlier keys is a mask of pairs.
"""

import warnings
from typing import Any

import pytest
import torch

from attnspec.reference import scaled_dot_product_attention

onnx = pytest.importorskip("onnx", reason="onnx is not installed: nox -s frameworks -- onnx")
CASES = 93
"""Cases of onnx 1.23.2; each comes once more as a graph of simpler operators."""

NOT_EXPRESSED = {"qk_matmul_output_mode", "softmax_precision"}
EXPRESSED = {
    *("q_num_heads", "kv_num_heads", "scale", "softcap", "is_causal"),
    *("left_window_size", "right_window_size"),
}


def cases() -> list[Any]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        # collecting them runs the examples of other operators, some of which overflow by design
        warnings.simplefilter("ignore", RuntimeWarning)
        collected = collect_testcases("Attention")
    nodes = [each for each in collected if len(each.model.graph.node) == 1]
    return [pytest.param(case, id=case.name.removeprefix("test_attention_")) for case in nodes]


ALL = cases()


def attributes(node: Any) -> dict[str, Any]:
    named = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    assert named.keys() <= EXPRESSED | NOT_EXPRESSED
    return named


def tensor(array: Any) -> torch.Tensor:
    """Return the numbers of an array, floating ones in float64."""
    if array.dtype.kind in "bi":
        return torch.from_numpy(array)
    return torch.from_numpy(array.astype("float64"))


def split(x: torch.Tensor, heads: int | None) -> torch.Tensor:
    """Return (batch, heads, length, channels)."""
    return x if x.dim() == 4 else x.unflatten(2, (heads, -1)).transpose(1, 2)


def as_bias(mask: torch.Tensor) -> torch.Tensor:
    """Return a mask as numbers to add."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=torch.float64).masked_fill(~mask, -torch.inf)


def mask_of(
    given: dict[str, torch.Tensor], options: dict[str, Any], queries: int, keys: int
) -> torch.Tensor:
    """Return one float mask (batch or 1, heads or 1, queries, keys) of all that hides keys."""
    bias = torch.zeros(1, 1, queries, keys, dtype=torch.float64)
    if "attn_mask" in given:
        mask = as_bias(given["attn_mask"])
        bias = bias + torch.nn.functional.pad(mask, (0, keys - mask.shape[-1]), value=-torch.inf)
    offset = torch.zeros(1, dtype=torch.int64)
    if "past_key" in given:
        offset = torch.tensor([given["past_key"].shape[2]])
    elif "nonpad_kv_seqlen" in given:
        offset = given["nonpad_kv_seqlen"] - queries
    # the position of each key relative to the query, by batch element
    place = torch.arange(keys) - (torch.arange(queries)[:, None] + offset[:, None, None, None])
    visible = torch.ones_like(place, dtype=torch.bool)
    if options.get("is_causal"):
        visible &= place <= 0
    if options.get("left_window_size", -1) >= 0:
        visible &= place >= -options["left_window_size"]
    if options.get("right_window_size", -1) >= 0:
        visible &= place <= options["right_window_size"]
    if "nonpad_kv_seqlen" in given:
        visible = visible & (torch.arange(keys) < given["nonpad_kv_seqlen"][:, None, None, None])
    return bias + as_bias(visible)


def expected_by_reference(case: Any) -> torch.Tensor:
    (node,) = case.model.graph.node
    options = attributes(node)
    arrays = iter(case.data_sets[0][0])
    given = {name: tensor(next(arrays)) for name in node.input if name}
    heads, kv_heads = options.get("q_num_heads"), options.get("kv_num_heads")
    query = split(given["Q"], heads)
    key, value = (split(given[name], kv_heads) for name in ("K", "V"))
    if "past_key" in given:
        key = torch.cat([given["past_key"], key], dim=2)
        value = torch.cat([given["past_value"], value], dim=2)
    out = scaled_dot_product_attention(
        query,
        key,
        value,
        mask_of(given, options, query.shape[2], key.shape[2]),
        scale=options.get("scale"),
        softcap=options.get("softcap") or None,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out if given["Q"].dim() == 4 else out.transpose(1, 2).flatten(2)


STORAGE_EPS = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The unit roundoff of the storage type, in which the expected outputs are rounded, step by step;
float32 is below the tolerance of the cases."""


@pytest.mark.parametrize("case", ALL)
def test_the_reference_agrees_with_a_case_of_onnx(case):
    array = case.data_sets[0][1][0]
    expected, found = tensor(array), expected_by_reference(case)
    assert found.shape == expected.shape
    # Values are below 1 in size. Scores, weights and output are each rounded to the storage type.
    allowed = case.atol + 8 * STORAGE_EPS[array.dtype.name]
    torch.testing.assert_close(found, expected, rtol=case.rtol, atol=allowed, equal_nan=True)


def test_no_case_is_left_out():
    assert len(ALL) == CASES


def test_a_wrong_diagonal_is_found():
    (case,) = (each.values[0] for each in ALL if each.id == "4d_causal_with_past_and_present")
    query, key, value, past_key, past_value = map(tensor, case.data_sets[0][0])
    key, value = torch.cat([past_key, key], 2), torch.cat([past_value, value], 2)
    upper_left = scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = tensor(case.data_sets[0][1][0])
    assert not torch.allclose(upper_left, expected, rtol=case.rtol, atol=case.atol)

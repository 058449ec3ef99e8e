"""Implementations of further libraries: loading, what is missing, refusals, and their links."""

import importlib.util
from pathlib import Path

import pytest
import torch

from attnspec import implementations
from attnspec.implementations import frameworks, transformers_attention
from attnspec.implementations.multi_head_attention import reaching_torch
from attnspec.spec import Case, Implementation, Layout, Layouts, Mask, MaskKind, MaskShape

ROOT = Path(__file__).parents[2]
NAMES = [name for names in implementations.framework_names().values() for name in names]
# nested tensors are a prototype, and flex_attention is meant to be compiled: torch warns of both;
# what transformers imports and calls for it is deprecated in torch
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
MODULES = {"flash-attn-3": "flash_attn_interface", "flashinfer-python": "flashinfer"}
"""Modules that are not called like the distribution that they come from."""
OF_TRANSFORMERS = (
    *("gpt2_eager", "gpt2_sdpa", "gpt2_flex"),
    *("llama_eager", "llama_sdpa", "llama_flex"),
)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_loads_without_its_library(name, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda module: None)
    loaded = implementations.load(name)
    assert isinstance(loaded, Implementation)
    assert loaded.name == name
    library = implementations.libraries()[name]
    if library != "torch":
        module = MODULES.get(library, library.replace("-", "_"))
        assert loaded.unavailable() == f"no module {module}"


@pytest.mark.parametrize("name", NAMES)
def test_every_deviation_links_to_a_label(name):
    for deviation in implementations.load(name).deviations:
        page, _, label = deviation.link.partition("#")
        assert f"({label})=" in (ROOT / page).read_text(encoding="utf-8")
        assert implementations.load(name).refuses(deviation.example) is None


def test_no_run_of_all_implementations_includes_them():
    assert not set(NAMES) & set(implementations.names())
    assert set(NAMES) < set(implementations.attention_names())
    assert set(implementations.libraries()) >= {*NAMES, "sdpa"}
    assert "eager" not in implementations.libraries()


@pytest.mark.parametrize("name", ["flex", "multi_head_attention", "nested_sdpa", *OF_TRANSFORMERS])
def test_results_are_those_of_sdpa(name):
    loaded = implementations.load(name)
    if loaded.unavailable():
        pytest.skip(str(loaded.unavailable()))
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    out = loaded.attention(query, key, value)
    right = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(out, right)
    assert out.shape == right.shape


class TestNested:
    attention = staticmethod(implementations.load("nested_sdpa").attention)

    def test_a_padding_mask_shortens_each_sequence(self):
        query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
        lengths = torch.tensor([5, 2])
        mask = (torch.arange(5) < lengths[:, None])[:, None, None]
        right = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        torch.testing.assert_close(self.attention(query, key, value, mask), right)

    @pytest.mark.parametrize("hidden", [0, 2])
    def test_another_mask_is_refused(self, hidden):
        x = torch.randn(1, 1, 4, 8)
        mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
        mask[..., hidden] = False
        with pytest.raises(ValueError, match="must hide the last keys"):
            self.attention(x, x, x, mask)
        with pytest.raises(ValueError, match="must be bool"):
            self.attention(x, x, x, mask.float())


class TestMultiHeadAttention:
    attention = staticmethod(implementations.load("multi_head_attention").attention)

    def test_a_mask_beside_the_flag_is_refused(self):
        x = torch.randn(1, 1, 4, 8)
        with pytest.raises(ValueError, match="a mask and is_causal together"):
            self.attention(x, x, x, torch.ones(4, 4, dtype=torch.bool), is_causal=True)

    def test_unequal_heads_are_refused(self):
        with pytest.raises(ValueError, match="same heads and channels"):
            self.attention(torch.randn(1, 2, 4, 8), *torch.randn(2, 1, 1, 4, 8))

    def test_projections_make_what_reaches_the_kernel_contiguous(self):
        case = Case(
            layouts=Layouts(query=Layout.TRANSPOSED), mask=Mask(shape=MaskShape.RANK_3), heads=1
        )
        reached = reaching_torch(case)
        assert reached.layouts == Layouts()
        assert reached.mask == Mask(shape=MaskShape.FULL)


class TestCallsOfFlexAttention:
    @pytest.mark.parametrize("name", ["flex", "gpt2_flex", "llama_flex"])
    def test_they_compile_nothing(self, name):
        loaded = implementations.load(name)
        if loaded.unavailable():
            pytest.skip(str(loaded.unavailable()))
        from torch._dynamo.utils import counters

        frames = dict(counters["frames"])
        query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
        loaded.attention(query, key, value, is_causal=True)
        assert dict(counters["frames"]) == frames

    def test_what_runs_after_a_call_that_raises_is_compiled(self):
        def fails():
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            frameworks.uncompiled(fails)()
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        torch.compile(lambda x: x + 1, backend=backend)(torch.zeros(2))
        assert len(graphs) == 1

    def test_a_float_mask_that_differs_between_heads_is_refused(self):
        alike = Case(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.BATCH))
        assert transformers_attention.flex_supports(alike) is None
        other = Case(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.HEADS))
        assert "first head" in str(transformers_attention.flex_supports(other))

    @pytest.mark.parametrize(
        ("shape", "repeated"),
        [(MaskShape.RANK_2, "batch"), (MaskShape.KEYS, "queries"), (MaskShape.QUERIES, "keys")],
    )
    def test_a_float_mask_that_is_repeated_is_refused_as_it_raises(self, shape, repeated):
        case = Case(batch=2, heads=1, kv_heads=1, queries=2, keys=3, d_head=4, d_value=4)
        case = case.but(mask=Mask(kind=MaskKind.FLOAT, shape=shape))
        assert "not repeated" in str(transformers_attention.flex_supports(case))
        once = case.but(**{repeated: 1})
        assert transformers_attention.flex_supports(once) is None
        loaded = implementations.load("gpt2_flex")
        if loaded.unavailable():
            pytest.skip(str(loaded.unavailable()))

        def call(each):
            sizes = {
                MaskShape.RANK_2: (each.queries, each.keys),
                MaskShape.KEYS: (each.batch, 1, 1, each.keys),
                MaskShape.QUERIES: (each.batch, 1, each.queries, 1),
            }[shape]
            query = torch.randn(each.batch, 1, each.queries, 4)
            key = torch.randn(each.batch, 1, each.keys, 4)
            return loaded.attention(query, key, key, torch.zeros(sizes))

        assert call(once).shape == (once.batch, 1, once.queries, 4)
        with pytest.raises(IndexError):
            call(case)


class TestCallsThatReachTorch:
    def test_a_causal_call_of_other_lengths_has_a_mask(self):
        case = Case(queries=2, keys=5, is_causal=True)
        reached = transformers_attention.reaching_torch(case)
        assert not reached.is_causal
        assert reached.mask is not None
        square = case.but(keys=2)
        assert transformers_attention.reaching_torch(square) == square

    def test_a_single_query_has_neither(self):
        reached = transformers_attention.reaching_torch(Case(queries=1, keys=5, is_causal=True))
        assert not reached.is_causal
        assert reached.mask is None

    @pytest.mark.parametrize(
        ("case", "reason"),
        [
            (Case(queries=3, keys=2, is_causal=True), "no fewer keys"),
            (Case(mask=Mask(shape=MaskShape.HEADS)), "common to all heads"),
            (Case(mask=Mask(kind=MaskKind.FLOAT), is_causal=True), "replaces the causal mask"),
        ],
        ids=str,
    )
    def test_calls_that_no_model_makes_are_refused(self, case, reason):
        assert reason in str(transformers_attention.supports(case))
        assert transformers_attention.supports(Case(queries=2, keys=3, is_causal=True)) is None

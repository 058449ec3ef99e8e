"""Several texts through one paged cache: token for token as each alone."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.reference.generation import generate
from attnspec.reference.model import GPT2, build
from attnspec.reference.paged_generation import (
    PagedCache,
    empty_paged_cache,
    generate_together,
    paged_step,
)
from attnspec.reference.parameters import parameter_shapes
from attnspec.spec import GPT2Config

CONFIG = GPT2Config(vocab_size=23, n_positions=16, n_embd=8, n_layer=2, n_head=2)


def random_model(config: GPT2Config) -> GPT2:
    """Build a model with parameters so large that logits differ."""
    source = torch.Generator().manual_seed(0)
    shapes = parameter_shapes(config)
    return build(
        config,
        {
            name: torch.randn(shape, dtype=torch.float64, generator=source)
            for name, shape in shapes.items()
        },
    )


MODEL = random_model(CONFIG)
SCALED = random_model(
    GPT2Config(
        vocab_size=23,
        n_positions=16,
        n_embd=12,
        n_layer=3,
        n_head=3,
        scale_attn_by_inverse_layer_idx=True,
    )
)
prompts = st.lists(st.lists(st.integers(0, 22), min_size=1, max_size=9), min_size=1, max_size=5)


def alone(model: GPT2, prompt: list[int], stop_tokens: tuple[int, ...] = ()) -> list[int]:
    """Return the new tokens of one prompt through the ordinary cache."""
    return list(generate(model, prompt, max_new_tokens=6, greedy=True, stop_tokens=stop_tokens))


@pytest.mark.rotating(parts=6)
@pytest.mark.parametrize("model", [MODEL, SCALED], ids=["plain", "scaled by layer"])
@settings(max_examples=30, deadline=None)
@given(prompts, st.sampled_from([1, 2, 3, 4, 16]), st.integers(0, 6))
def test_each_text_is_the_same_as_alone(
    model: GPT2, texts: list[list[int]], page_size: int, more: int
) -> None:
    most = max(-(-(len(text) + 6) // page_size) for text in texts)
    got = generate_together(
        texts,
        model.weights,
        model.config,
        max_new_tokens=6,
        page_size=page_size,
        pages=most + more,  # so few that some texts wait for the pages of others
    )
    assert got == [alone(model, text) for text in texts]


def test_a_text_that_ends_makes_room_for_the_next() -> None:
    texts = [[1, 2, 3], [4], [5, 6]]
    likeliest = [alone(MODEL, text) for text in texts]
    stop = (likeliest[0][2], likeliest[1][0])
    seen = []

    def keep(cache: PagedCache) -> None:
        pages = [page for table in cache.tables.values() for page in table]
        assert len(set(pages)) == len(pages)
        assert sorted([*pages, *cache.free]) == list(range(6))
        seen.append(set(cache.tables))

    got = generate_together(
        texts,
        MODEL.weights,
        CONFIG,
        max_new_tokens=6,
        page_size=2,
        pages=6,
        stop_tokens=stop,
        on_step=keep,
    )
    assert got == [alone(MODEL, text, stop) for text in texts]
    assert seen[0] != {0, 1, 2}
    assert {2} in seen


def test_logits_of_a_step_are_those_of_the_whole_texts() -> None:
    cache = empty_paged_cache(CONFIG, pages=9, page_size=2)
    paged_step({0: [3, 1, 4]}, MODEL.weights, CONFIG, cache)
    # a prompt joins while another text goes on
    got = paged_step({1: [2, 7, 1, 8], 0: [5]}, MODEL.weights, CONFIG, cache)
    for row, text in zip(got, ([2, 7, 1, 8], [3, 1, 4, 5]), strict=True):
        assert torch.allclose(row, MODEL(torch.tensor([text]))[0, -1], rtol=1e-9)


def test_calls_without_room_are_refused() -> None:
    def call(texts: list[list[int]], **options: int) -> None:
        generate_together(texts, MODEL.weights, CONFIG, **{"max_new_tokens": 4} | options)

    with pytest.raises(ValueError, match="no room in 1 pages of 4"):
        call([[1, 2]], pages=1, page_size=4)
    with pytest.raises(ValueError, match="16 positions"):
        call([[1] * 13])
    with pytest.raises(ValueError, match="at least one token"):
        call([[1], []])
    with pytest.raises(ValueError, match="must not be negative"):
        call([[1]], max_new_tokens=-1)
    assert generate_together([[1], [2]], MODEL.weights, CONFIG, max_new_tokens=0) == [[], []]
    assert generate_together([], MODEL.weights, CONFIG, max_new_tokens=3) == []

"""Several texts at once: GPT-2 on a paged cache, as an inference engine runs it."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float

from attnspec.reference.cache import empty_cache
from attnspec.reference.generation import check_length
from attnspec.reference.model import gpt2_with_options
from attnspec.reference.packed import pack
from attnspec.reference.paged import paged_attention
from attnspec.spec import GPT2Config
from attnspec.spec.packed import CAUSAL


@dataclass(kw_only=True)
class PagedCache:
    """The keys and values of many texts, in the pages of one pool; a step writes to it in place.

    Attributes:
        keys: a pool (pages, page_size, heads, d_head) for each layer.
        values: likewise.
        free: the pages that belong to no text.
        tables: the pages of each text, by its number.
        lengths: the tokens of each text in its pages.
    """

    keys: Float[torch.Tensor, "layers pages page_size heads d_head"]
    values: Float[torch.Tensor, "layers pages page_size heads d_head"]
    free: list[int]
    tables: dict[int, list[int]] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)

    @property
    def page_size(self) -> int:
        """The number of tokens of a page."""
        return self.keys.shape[2]

    def pages_for(self, tokens: int) -> int:
        """Return the number of pages that so many tokens take."""
        return -(-tokens // self.page_size)

    def grow(self, text: int, tokens: int) -> None:
        """Give a text pages for its tokens so far and some new ones.

        Args:
            text: its number; a new one begins without tokens.
            tokens: the number of new tokens.
        """
        table = self.tables.setdefault(text, [])
        length = self.lengths.setdefault(text, 0)
        while len(table) < self.pages_for(length + tokens):
            table.append(self.free.pop())

    def release(self, text: int) -> None:
        """Take the pages of a text that has ended; the next ones overwrite them."""
        self.free += self.tables.pop(text)
        del self.lengths[text]


def empty_paged_cache(
    config: GPT2Config, *, pages: int, page_size: int, dtype: torch.dtype = torch.float64
) -> PagedCache:
    """Create a pool whose pages belong to no text, and hold NaN until they are written.

    Args:
        config: gives layers, heads and channels.
        pages: at least 1.
        page_size: tokens of a page, at least 1.
        dtype: of the keys and values.
    """
    d_head = config.n_embd // config.n_head
    shape = (config.n_layer, pages, page_size, config.n_head, d_head)
    keys, values = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
    return PagedCache(keys=keys, values=values, free=list(range(pages))[::-1])


def paged_step(
    new_tokens: Mapping[int, Sequence[int]],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
    cache: PagedCache,
) -> Float[torch.Tensor, "texts vocab"]:
    """Append new tokens to some texts in one pass, and return the logits after the last of each.

    The texts are packed: one may bring its whole prompt while others bring a token each.

    Args:
        new_tokens: the new tokens of each text, at least one, by its number.
        weights: as in `gpt2`.
        config: as in `gpt2`.
        cache: has the earlier tokens; the keys and values of the new ones are written to it.

    Returns:
        The logits of each text, in the order of `new_tokens`.

    Clauses:
        PAG-15, PAG-16
    """
    for text, tokens in new_tokens.items():
        cache.grow(text, len(tokens))
    ids = [torch.tensor(tokens)[:, None, None] for tokens in new_tokens.values()]
    packed, offsets, longest = pack(ids)
    past = torch.tensor([cache.lengths[text] for text in new_tokens])
    counts = offsets.diff()
    positions = torch.arange(len(packed)) + (past - offsets[:-1]).repeat_interleave(counts)
    tables = [torch.tensor(cache.tables[text]) for text in new_tokens]
    table = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True, padding_value=-1)
    layers = iter(zip(cache.keys, cache.values, strict=True))

    def attention(
        query: Float[torch.Tensor, "1 heads total d_head"],
        key: Float[torch.Tensor, "1 heads total d_head"],
        value: Float[torch.Tensor, "1 heads total d_head"],
        *,
        scale: float,
        **causal: Any,
    ) -> Float[torch.Tensor, "1 heads total d_head"]:
        """Attend to the pages of the next layer, as each layer calls it once."""
        new = [x[0].transpose(0, 1) for x in (query, key, value)]
        out = paged_attention(
            new[0],
            *next(layers),
            offsets,
            None,
            longest,
            int((past + counts).max()),
            seqused_k=past,
            block_table=table,
            new_key=new[1],
            new_value=new[2],
            window_size=CAUSAL,
            scale=scale,
        )
        assert isinstance(out, torch.Tensor)
        return out.transpose(0, 1)[None]

    logits = gpt2_with_options(
        packed.flatten()[None],
        weights,
        config,
        attention=attention,
        cache=empty_cache(config.n_layer),
        position_ids=positions[None],
    ).logits
    for text, tokens in new_tokens.items():
        cache.lengths[text] += len(tokens)
    return logits[0, offsets[1:].long() - 1]


@torch.no_grad()
def generate_together(
    prompts: Sequence[Sequence[int]],
    weights: Mapping[str, torch.Tensor],
    config: GPT2Config,
    *,
    max_new_tokens: int,
    page_size: int = 16,
    pages: int | None = None,
    stop_tokens: Collection[int] = (),
    on_step: Callable[[PagedCache], None] | None = None,
) -> list[list[int]]:
    """Continue several texts at once by their likeliest tokens, through one paged cache.

    A prompt waits until there are pages for all of its tokens, and then joins the others; a text
    that ends makes room for the next.

    Args:
        prompts: token ids of each, at least one.
        weights: as in `gpt2`.
        config: as in `gpt2`.
        max_new_tokens: the largest number of new tokens of each text, not negative.
        page_size: tokens of a page, at least 1.
        pages: of the pool; None for as many as all texts need at once.
        stop_tokens: token ids that end a text; they are not returned.
        on_step: called with the cache after each step.

    Returns:
        The new tokens of each prompt: those that `generate` returns for it alone with `greedy`.

    Raises:
        ValueError: for an empty prompt, a negative number, or a text without room in the pool, or
            in the positions of the model.

    Clauses:
        PAG-16, GEN-11
    """
    for prompt in prompts:
        check_length(prompt, max_new_tokens)
    most = [len(prompt) + max_new_tokens for prompt in prompts]
    needs = [-(-length // page_size) for length in most]
    room = sum(needs) if pages is None else pages
    if max(needs, default=0) > room or max(most, default=0) > config.n_positions:
        raise ValueError(
            f"a text of {max(most)} tokens has no room in {room} pages of {page_size}, or in "
            f"{config.n_positions} positions"
        )
    dtype = weights["transformer.wte.weight"].dtype
    cache = empty_paged_cache(config, pages=max(room, 1), page_size=page_size, dtype=dtype)
    waiting = deque(range(len(prompts)) if max_new_tokens else ())
    running: list[int] = []
    answers: list[list[int]] = [[] for _ in prompts]
    while waiting or running:
        while waiting and sum(needs[text] for text in (*running, waiting[0])) <= room:
            running.append(waiting.popleft())
        # the last token of a text that runs, or the whole prompt of one that begins
        new = {text: answers[text][-1:] or prompts[text] for text in running}
        logits = paged_step(new, weights, config, cache)
        if on_step is not None:
            on_step(cache)
        for text, row in zip(list(running), logits, strict=True):
            token = int((row == row.max()).nonzero()[0])
            is_stop = token in stop_tokens
            if not is_stop:
                answers[text].append(token)
            if is_stop or len(answers[text]) == max_new_tokens:
                running.remove(text)
                cache.release(text)
    return answers

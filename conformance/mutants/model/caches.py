"""Mutants of whole GPT-2 models: the tokens of a cache are stored in the wrong place."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, model_mistake


@model_mistake(
    "own-cache-in-the-model",
    "keys and values are stored in the model, and a new cache empties it",
    killed_by="caches-of-one-model-are-independent",
    breaks=("GPT-23",),
)
class CacheInTheModel(CompactGPT2):
    def empty_cache(self) -> Any:
        self.kept: Any = ()
        return ()

    def __call__(  # type: ignore[override]
        self, input_ids: torch.Tensor, cache: Any = None, **options: Any
    ) -> Any:
        if cache is None:
            return super().__call__(input_ids, **options)
        outputs = super().__call__(input_ids, self.kept, **options)
        self.kept = outputs[1]
        return outputs


@model_mistake(
    "own-cache-in-place",
    "a cache is a list that each call extends in place",
    killed_by="a-cache-can-be-continued-twice",
)
class CacheInPlace(CompactGPT2):
    def empty_cache(self) -> Any:
        return []

    def __call__(  # type: ignore[override]
        self, input_ids: torch.Tensor, cache: Any = None, **options: Any
    ) -> Any:
        if cache is None:
            return super().__call__(input_ids, **options)
        logits, kept, *states = super().__call__(input_ids, tuple(cache), **options)
        cache[:] = kept
        return (logits, cache, *states)


@model_mistake(
    "own-cache-memory-shared",
    "two continuations of a cache write their tokens to the same memory",
    killed_by="a-cache-can-be-continued-twice",
)
class CacheMemoryShared(CompactGPT2):
    def attention(
        self,
        x: torch.Tensor,
        visible: torch.Tensor,
        kept: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        mixed, (key, value) = super().attention(x, visible, kept)
        if torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            return mixed, (key, value)
        return mixed, (self.stored(kept and kept[0], key), self.stored(kept and kept[1], value))

    def stored(self, past: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
        """Write all tokens to the memory behind the past ones, or to new memory."""
        length = tokens.shape[2]
        if past is None:
            shape = (*tokens.shape[:2], self.config.n_positions, tokens.shape[3])
            memory = tokens.new_zeros(shape)
        else:
            memory = past._base if past._base is not None else past
        memory[:, :, :length] = tokens
        return memory[:, :, :length]


@model_mistake(
    "own-mask-remembered",
    "the padding mask of a call is used again by the next one without a mask",
    killed_by="other-calls-and-models-in-between-change-nothing",
    breaks=("GPT-17",),
)
class MaskRemembered(CompactGPT2):
    last: torch.Tensor | None = None

    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if attention_mask is not None:
            self.last = attention_mask
        elif self.last is not None and self.last.shape == (len(input_ids), input_ids.shape[1]):
            attention_mask = self.last
        return super().visible(input_ids, past, attention_mask if past == 0 else None)


@model_mistake(
    "own-parameters-of-the-class",
    "parameters are stored in the class: a second model overwrites those of the first",
    killed_by="other-calls-and-models-in-between-change-nothing",
    breaks=("GPT-27",),
)
class ParametersOfTheClass(CompactGPT2):
    def __setattr__(self, name: str, value: Any) -> None:
        setattr(type(self), name, value)


@model_mistake(
    "own-states-of-a-padded-cache",
    "with a cache and a padding mask, hidden states are reported from the first real token on",
    killed_by="hidden-states-of-padded-rows-are-those-of-each-alone",
)
class StatesOfAPaddedCache(CompactGPT2):
    def __call__(
        self,
        input_ids: torch.Tensor,
        cache: Any = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> Any:
        result = super().__call__(
            input_ids, cache, attention_mask, position_ids, output_hidden_states
        )
        if not cache or attention_mask is None or not output_hidden_states:
            return result
        logits, kept, states = result
        shifts = attention_mask.shape[1] - attention_mask.sum(1)
        shifted = [
            torch.stack([row.roll(-int(n), 0) for row, n in zip(state, shifts, strict=True)])
            for state in states
        ]
        return logits, kept, tuple(shifted)


@model_mistake(
    "own-bool-mask-of-a-cache",
    "a padding mask of bools hides no token of a cache",
    killed_by="masks-of-any-type-hide-the-same",
)
class BoolMaskOfACache(CompactGPT2):
    def visible(
        self, input_ids: torch.Tensor, past: int, attention_mask: torch.Tensor | None
    ) -> torch.Tensor:
        if past and attention_mask is not None and attention_mask.dtype == torch.bool:
            attention_mask = torch.ones_like(attention_mask)
        return super().visible(input_ids, past, attention_mask)


@model_mistake(
    "own-narrow-ids-of-a-cache",
    "ids of 32 bits are read two at a time where they come after others through a cache",
    killed_by="ids-are-read-wherever-they-lie",
)
class NarrowIdsOfACache(CompactGPT2):
    def __call__(  # type: ignore[override]
        self, input_ids: torch.Tensor, cache: Any = None, **options: Any
    ) -> Any:
        if cache and input_ids.dtype == torch.int32:
            input_ids = (2 * input_ids) % self.config.vocab_size
        return super().__call__(input_ids, cache, **options)

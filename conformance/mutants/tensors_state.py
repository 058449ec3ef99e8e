"""Mutants of TEN, third part: something of another call is taken for this one's."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense, read_memory
from attnspec.spec import Feature

NOTICED = "one-changed-argument-is-noticed"
BETWEEN = "calls-of-another-kind-between-change-nothing"
AT_ONCE = "calls-at-once-do-not-meet"
REMEMBERED = 8
"""Entries after which a cache is emptied."""

correct: Callable[..., Any] = Dense()


class _First:
    """A correct attention that keeps something from the first call under a key that says less."""

    def __init__(
        self,
        key: Callable[..., Any],
        kept: Callable[[tuple[torch.Tensor, ...], dict[str, Any]], Any],
        used: Callable[[Any, tuple[torch.Tensor, ...], dict[str, Any]], Any],
    ) -> None:
        """Remember nothing yet.

        Args:
            key: of the operands: under what something is kept.
            kept: of operands and options: what is kept of them.
            used: of what was kept, operands and options: the result.
        """
        self.key, self.kept, self.used, self.first = key, kept, used, dict[Any, Any]()

    def __call__(self, *operands: torch.Tensor, **options: Any) -> Any:
        if len(self.first) > REMEMBERED:
            self.first.clear()
        kept = self.first.setdefault(self.key(*operands), self.kept(operands, options))
        return self.used(kept, operands, options)


def _sizes(*operands: torch.Tensor) -> Any:
    return tuple(tuple(each.shape) for each in operands)


def _sizes_and_types(*operands: torch.Tensor) -> Any:
    return tuple((tuple(each.shape), each.dtype) for each in operands)


def _option(name: str) -> _First:
    return _First(
        _sizes_and_types,
        lambda operands, options: options.get(name),
        lambda kept, operands, options: correct(*operands, **{**options, name: kept}),
    )


for _name, _what, _feature in (
    ("window", "window", Feature.WINDOW),
    ("sinks", "sinks", Feature.SINKS),
    ("alibi_slopes", "slopes", Feature.ALIBI),
):
    plant_dense(
        f"own-{_what}-cached",
        f"compiled code cached without the {_what} in its key",
        _option(_name),
        NOTICED,
        features=(_feature,),
    )
plant_dense(
    "own-softcap-cached",
    "compiled code cached without the softcap in its key",
    _option("softcap"),
    NOTICED,
    features=(Feature.SOFTCAP,),
    source="https://github.com/Dao-AILab/flash-attention/pull/2402",
)
plant_dense(
    "CMP-05",
    "replay of a recorded call uses the range of values that it recorded",
    _First(
        _sizes_and_types,
        lambda operands, options: operands[2].detach().abs().amax() if operands[2].numel() else 0,
        lambda kept, operands, options: correct(
            *operands[:2], operands[2].clamp(-kept, kept), **options
        ),
    ),
    NOTICED,
    source="https://github.com/thu-ml/SageAttention/issues/392",
)
plant_dense(
    "own-type-of-the-first",
    "code cached by sizes computes in the type of the call that it was made for",
    _First(
        _sizes,
        lambda operands, options: operands[0].dtype,
        lambda kept, operands, options: correct(
            *(each.to(kept) for each in operands), **_masks_to(options, kept)
        ).to(operands[2].dtype),
    ),
    BETWEEN,
)


def _masks_to(options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    mask = options.get("attn_mask")
    if mask is None or mask.dtype == torch.bool:
        return options
    return {**options, "attn_mask": mask.to(dtype)}


plant_dense(
    "own-strides-of-the-first",
    "code cached by sizes and types reads with the strides that it was made for",
    _First(
        _sizes_and_types,
        lambda operands, options: tuple(each.stride() for each in operands),
        lambda kept, operands, options: correct(
            *(read_memory(each, strides) for each, strides in zip(operands, kept, strict=True)),
            **options,
        ),
    ),
    BETWEEN,
)
plant_dense(
    "own-groups-of-the-first",
    "the table of shared heads cached by the sizes of the queries",
    _First(
        lambda query, key, value: (tuple(query.shape), query.dtype),
        lambda operands, options: operands[1].shape[1],
        lambda kept, operands, options: correct(
            operands[0],
            *(each[:, torch.arange(kept) % each.shape[1]] for each in operands[1:]),
            **options,
        ),
    ),
    BETWEEN,
)


@mistake(
    "own-detached-ever-after",
    "a call after one with gradients answers with what the backward pass kept",
    kills=(BETWEEN,),
)
class _Detached(Dense):
    """Keep the weights of a call with gradients, and use them once more."""

    def __init__(self) -> None:
        self.saved: torch.Tensor | None = None

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        weights = super().softmax(scores, visible)
        saved, self.saved = self.saved, weights.detach() if scores.requires_grad else None
        is_like = saved is not None and (saved.shape, saved.dtype) == (weights.shape, weights.dtype)
        return saved if is_like and saved is not None else weights


@mistake(
    "own-one-scratch",
    "all threads share one place for what is being computed",
    kills=(AT_ONCE,),
)
class _OneScratch(Dense):
    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        self.packed = value.clone()
        return super().__call__(query, key, value, *rest, **options)

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return weights @ self.share_heads(self.packed, weights.shape[1]).to(weights.dtype)

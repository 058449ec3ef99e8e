"""Mutants of rotary positions: positions that are rounded, ignored, miscounted or kept."""

from typing import Any

import torch

from attnspec.conformance.mutants.bases.rotary import FEATURES, PlainRotary, rotary_mistake
from attnspec.conformance.mutants.bases.wrong_at_rows import wrong_at
from attnspec.conformance.mutants.registry import plant
from attnspec.conformance.operators.rotary.regimes import AXES, call_of
from attnspec.spec.operator import Working
from attnspec.spec.rotary import RotaryImplementation, RotaryProfile

MERGE = "neighbouring-positions-do-not-merge"
LARGE = "angles-of-large-positions-are-accurate"
OWN = "tokens-are-turned-by-their-own-positions"
CACHE = "tokens-of-later-calls-are-turned-as-in-one-call"
MEMORY = "x-is-read-by-its-strides-and-stays-as-it-is"
STATE = "an-earlier-call-changes-no-later-rotation"
STEPS = RotaryProfile(working=Working.STORAGE)


class _Rounded(PlainRotary):
    """Angles in the storage type, as in a model whose buffers are converted with it."""

    storage = torch.float64

    def __call__(self, x: torch.Tensor, positions: torch.Tensor, **keywords: Any) -> torch.Tensor:
        self.storage = x.dtype
        return super().__call__(x, positions, **keywords)


@rotary_mistake(
    "own-rotary-bfloat16-angles",
    "positions, frequencies and angles are rounded to the storage type",
    killed_by=MERGE,
    profile=STEPS,
    source="https://github.com/EleutherAI/gpt-neox/issues/1003",
)
class RoundedAngles(_Rounded):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        rounded = positions[..., None].to(self.storage) * theta.to(self.storage)
        return rounded.to(theta.dtype)


@rotary_mistake(
    "own-rotary-bfloat16-positions",
    "positions are rounded to the storage type",
    killed_by=MERGE,
    source="https://github.com/nkalyanv99/UNI-D2/pull/6",
)
class RoundedPositions(_Rounded):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return positions[..., None].to(self.storage).to(theta.dtype) * theta


@rotary_mistake(
    "own-rotary-bfloat16-frequencies",
    "frequencies are rounded to the storage type",
    killed_by="rotary-equals-the-definition",
    source="https://github.com/sgl-project/sglang-jax/issues/1472",
)
class RoundedFrequencies(_Rounded):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(positions, theta.to(self.storage).to(theta.dtype))


@rotary_mistake(
    "own-rotary-float32-angles",
    "angles of float64 operands are computed in float32, undeclared",
    killed_by=LARGE,
)
class Float32Angles(PlainRotary):
    def powers(self, width: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        return super().powers(width, base, torch.float32)


@rotary_mistake(
    "own-rotary-table-ends",
    "positions beyond a table of 65 536 rows are turned like its last",
    killed_by=LARGE,
)
class TableEnds(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(positions.clamp(max=65_535), theta)


@rotary_mistake(
    "own-rotary-table-wraps", "positions wrap around a table of 512 rows", killed_by="turns-add"
)
class TableWraps(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(positions % 512, theta)


@rotary_mistake(
    "own-rotary-steps-rounded",
    "cosine, sine and products are rounded to 16 bits, undeclared",
    killed_by="rotations-of-16-bits-are-rounded-as-declared",
    source="https://github.com/vllm-project/vllm/issues/863",
)
class StepsRounded(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return super().turn(x, cosine.to(x.dtype), sine.to(x.dtype))


@rotary_mistake(
    "own-rotary-positions-ignored",
    "tokens are turned by their place in the call",
    killed_by=OWN,
    source="https://github.com/NVIDIA/Megatron-LM/issues/453",
)
class Ignored(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(torch.arange(positions.shape[1]).expand_as(positions), theta)


@rotary_mistake(
    "own-rotary-first-sequence",
    "every sequence of a batch is turned by the positions of the first",
    killed_by=OWN,
    source="https://github.com/unslothai/unsloth/pull/4078",
)
class FirstSequence(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(positions[:1].expand_as(positions), theta)


@rotary_mistake(
    "own-rotary-not-restarted",
    "positions are counted on from the first of each sequence",
    killed_by=OWN,
    source="https://github.com/allenai/OLMo-core/pull/591",
)
class NotRestarted(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        counted = torch.arange(positions.shape[1])
        return super().angles(positions[:, :1] + counted, theta)


@rotary_mistake(
    "own-rotary-from-one",
    "positions are one too large",
    killed_by="position-zero-changes-nothing",
)
class FromOne(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        return super().angles(positions + 1, theta)


@rotary_mistake(
    "own-rotary-cache-offset",
    "a single token behind a cache is turned as the first",
    killed_by=CACHE,
    source="https://github.com/pytorch/executorch/pull/2010",
)
class CacheOffset(PlainRotary):
    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        if positions.shape[1] == 1:
            positions = torch.zeros_like(positions)
        return super().angles(positions, theta)


@rotary_mistake(
    "own-rotary-twice",
    "a single token behind a cache is turned twice",
    killed_by=CACHE,
)
class Twice(PlainRotary):
    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        turned = super().turn(x, cosine, sine)
        return super().turn(turned, cosine, sine) if x.shape[2] == 1 else turned


@rotary_mistake(
    "own-rotary-in-place",
    "x is overwritten, so that a second call turns it twice",
    killed_by=MEMORY,
)
class InPlace(PlainRotary):
    def __call__(self, x: torch.Tensor, positions: torch.Tensor, **keywords: Any) -> torch.Tensor:
        turned = super().__call__(x, positions, **keywords)
        x.detach().copy_(turned.detach())
        return turned


@rotary_mistake(
    "own-rotary-contiguous",
    "x is read as if it were contiguous",
    killed_by=MEMORY,
)
class Contiguous(PlainRotary):
    def __call__(self, x: torch.Tensor, positions: torch.Tensor, **keywords: Any) -> torch.Tensor:
        dense = torch.empty(x.shape, dtype=x.dtype).stride()
        return super().__call__(x.as_strided(x.shape, dense), positions, **keywords)


@rotary_mistake(
    "own-rotary-cached-positions",
    "cosine and sine of the first call of a length are kept for other positions",
    killed_by=STATE,
    source="https://github.com/lucidrains/rotary-embedding-torch/issues/11",
)
class CachedPositions(PlainRotary):
    def __init__(self) -> None:
        self.kept: dict[Any, torch.Tensor] = {}

    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        key = (positions.shape, theta.shape, theta.dtype)
        if key not in self.kept:
            self.kept[key] = super().angles(positions, theta)
        return self.kept[key]


plant(
    id="own-rotary-wrong-at-131072",
    title="wrong in calls with a position from 131 072 on",
    subject=RotaryImplementation(
        name="wrong_at_131072",
        function=wrong_at(PlainRotary(), call_of, AXES, ("positions", "131 072 and more")),
        features=FEATURES,
    ),
    killed_by="rotary-is-right-in-every-two-regimes",
)

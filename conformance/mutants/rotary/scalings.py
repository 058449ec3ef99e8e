"""Mutants of rotary positions: scalings that are forgotten or half done."""

from collections.abc import Mapping
from typing import Any

import torch

from attnspec.conformance.mutants.bases.rotary import PlainRotary, rotary_mistake

LINEAR = "linear-scaling-divides-every-frequency"
DYNAMIC = "dynamic-scaling-follows-the-length-of-the-call"
YARN = "yarn-mixes-frequencies-and-multiplies-cosine-and-sine"
LLAMA3 = "llama3-scaling-divides-frequencies-with-few-turns"
Given = Mapping[str, Any]


@rotary_mistake(
    "own-rotary-linear-times",
    "with linear, positions are multiplied by the factor",
    killed_by=LINEAR,
    source="https://github.com/ml-explore/mlx-lm/issues/1545",
)
class LinearTimes(PlainRotary):
    def linear(
        self, width: int, base: float, given: Given, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        factor: float = given["factor"]
        return self.powers(width, base, dtype) * factor


@rotary_mistake(
    "own-rotary-dynamic-fixed",
    "with dynamic, the base is that of a fixed length",
    killed_by=DYNAMIC,
    source="https://github.com/vllm-project/vllm/issues/41236",
)
class DynamicFixed(PlainRotary):
    def dynamic(
        self, width: int, base: float, given: Given, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        longest = int(given["factor"] * given["original_max_position_embeddings"])
        return super().dynamic(width, base, given, longest, dtype)


@rotary_mistake(
    "own-rotary-dynamic-short",
    "with dynamic, calls below the original length have a smaller base",
    killed_by=DYNAMIC,
    source="https://github.com/vllm-project/vllm/pull/52675",
)
class DynamicShort(PlainRotary):
    def dynamic(
        self, width: int, base: float, given: Given, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        original, factor = given["original_max_position_embeddings"], given["factor"]
        ratio = max(factor * length / original - (factor - 1), 0.1)
        return self.powers(width, base * ratio ** (width / (width - 2)), dtype)


@rotary_mistake(
    "own-rotary-dynamic-grown",
    "with dynamic, the base of a long call stays for short ones",
    killed_by="an-earlier-call-changes-no-later-rotation",
    source="https://github.com/huggingface/transformers/pull/27227",
)
class DynamicGrown(PlainRotary):
    def __init__(self) -> None:
        self.longest = 0

    def length(self, positions: torch.Tensor) -> int:
        self.longest = max(self.longest, super().length(positions))
        return self.longest


@rotary_mistake(
    "own-rotary-yarn-factor",
    "with yarn, cosine and sine are not multiplied",
    killed_by=YARN,
    source="https://github.com/turboderp-org/exllamav3/issues/259",
)
class YarnWithoutFactor(PlainRotary):
    def magnitude(self, scaling: Given | None) -> float:
        return 1.0


@rotary_mistake(
    "own-rotary-yarn-given-factor",
    "with yarn, a given factor of cosine and sine is ignored",
    killed_by=YARN,
    source="https://github.com/ml-explore/mlx-lm/pull/1507",
)
class YarnGivenFactor(PlainRotary):
    def magnitude(self, scaling: Given | None) -> float:
        if scaling is None:
            return 1.0
        return super().magnitude({**scaling, "attention_factor": None})


@rotary_mistake(
    "own-rotary-yarn-ramp", "with yarn, high frequencies are divided, low ones kept", killed_by=YARN
)
class YarnRamp(PlainRotary):
    def yarn(
        self, width: int, base: float, given: Given, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        theta = self.powers(width, base, dtype)
        right = super().yarn(width, base, given, length, dtype)
        factor: float = given["factor"]
        return theta + theta / factor - right


@rotary_mistake(
    "own-rotary-llama3-forgotten",
    "with llama3, frequencies are not scaled",
    killed_by=LLAMA3,
    source="https://github.com/ikawrakow/ik_llama.cpp/pull/2291",
)
class Llama3Forgotten(PlainRotary):
    def llama3(
        self, width: int, base: float, given: Given, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        return self.powers(width, base, dtype)


@rotary_mistake(
    "own-rotary-llama3-factor",
    "with llama3, the factor is 8, whatever the call gives",
    killed_by=LLAMA3,
    source="https://github.com/meta-llama/llama-models/issues/241",
)
class Llama3Factor(PlainRotary):
    def llama3(
        self, width: int, base: float, given: Given, length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        return super().llama3(width, base, {**given, "factor": 8.0}, length, dtype)

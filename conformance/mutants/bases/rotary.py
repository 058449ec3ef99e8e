"""A correct rotary embedding whose steps mutants replace."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from attnspec.conformance.mutants.registry import plant
from attnspec.spec.operator import Working
from attnspec.spec.rotary import Pairing, RotaryImplementation, RotaryProfile

FEATURES = RotaryImplementation.FEATURES


class PlainRotary:
    """A rotary embedding in torch's own operations, with every scaling, in either pairing."""

    profile = RotaryProfile()

    def __call__(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        *,
        rotary_dim: int | None = None,
        base: float = 10_000.0,
        scaling: Mapping[str, Any] | None = None,
    ) -> torch.Tensor:
        """Return x, each token turned by its position."""
        width = x.shape[-1] if rotary_dim is None else rotary_dim
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        theta = self.frequencies(width, base, scaling, self.length(positions), dtype)
        angles = self.angles(positions, theta)[:, None]
        magnitude = self.magnitude(scaling)
        cosine, sine = angles.cos() * magnitude, angles.sin() * magnitude
        if self.profile.working is Working.STORAGE:
            cosine, sine = cosine.to(x.dtype), sine.to(x.dtype)
        turned = self.turn(x[..., :width], cosine, sine).to(x.dtype)
        return torch.cat([turned, x[..., width:]], dim=-1)

    def length(self, positions: torch.Tensor) -> int:
        """Return the length of the call, by which `dynamic` scales."""
        return int(positions.max()) + 1

    def frequencies(
        self,
        width: int,
        base: float,
        scaling: Mapping[str, Any] | None,
        length: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Return the frequency of each pair."""
        if scaling is None:
            return self.powers(width, base, dtype)
        scale = {
            "linear": self.linear,
            "dynamic": self.dynamic,
            "yarn": self.yarn,
            "llama3": self.llama3,
        }[scaling["rope_type"]]
        return scale(width, base, scaling, length, dtype)

    def powers(self, width: int, base: float, dtype: torch.dtype) -> torch.Tensor:
        """Return the frequencies without scaling."""
        return 1 / base ** (torch.arange(0, width, 2, dtype=dtype) / width)

    def linear(
        self, width: int, base: float, given: Mapping[str, Any], length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the frequencies of linear scaling."""
        factor: float = given["factor"]
        return self.powers(width, base, dtype) / factor

    def dynamic(
        self, width: int, base: float, given: Mapping[str, Any], length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the frequencies of dynamic scaling."""
        original, factor = given["original_max_position_embeddings"], given["factor"]
        ratio = factor * max(length, original) / original - (factor - 1)
        return self.powers(width, base * ratio ** (width / (width - 2)), dtype)

    def yarn(
        self, width: int, base: float, given: Mapping[str, Any], length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the frequencies of YaRN."""

        def pair(turns: float) -> float:
            original = given["original_max_position_embeddings"]
            return width * math.log(original / (2 * math.pi * turns)) / (2 * math.log(base))

        low, high = pair(given["beta_fast"]), pair(given["beta_slow"])
        if given["truncate"]:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        span = high - low if high != low else 1e-3
        ramp = ((torch.arange(width // 2, dtype=dtype) - low) / span).clamp(0, 1)
        theta, factor = self.powers(width, base, dtype), float(given["factor"])
        return theta / factor * ramp + theta * (1 - ramp)

    def llama3(
        self, width: int, base: float, given: Mapping[str, Any], length: int, dtype: torch.dtype
    ) -> torch.Tensor:
        """Return the frequencies of Llama 3."""
        theta = self.powers(width, base, dtype)
        low, high = float(given["low_freq_factor"]), float(given["high_freq_factor"])
        factor: float = given["factor"]
        turns = float(given["original_max_position_embeddings"]) * theta / (2 * math.pi)
        kept = ((turns - low) / (high - low)).clamp(0, 1)
        return theta / factor * (1 - kept) + theta * kept

    def magnitude(self, scaling: Mapping[str, Any] | None) -> float:
        """Return the factor of cosine and sine."""
        if scaling is None or scaling["rope_type"] != "yarn":
            return 1.0
        own = scaling.get("attention_factor")
        return 0.1 * math.log(scaling["factor"]) + 1 if own is None else own

    def angles(self, positions: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
        """Return the angles, (batch, length, pairs)."""
        return positions[..., None].to(theta.dtype) * theta

    def split(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the first and the second channel of every pair."""
        if self.profile.pairing is Pairing.INTERLEAVED:
            return x[..., 0::2], x[..., 1::2]
        first, second = x.chunk(2, dim=-1)
        return first, second

    def join(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        """Return the channels of pairs."""
        if self.profile.pairing is Pairing.INTERLEAVED:
            return torch.stack([first, second], dim=-1).flatten(-2)
        return torch.cat([first, second], dim=-1)

    def turn(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        """Return x, its pairs turned."""
        a, b = self.split(x)
        return self.join(a * cosine - b * sine, a * sine + b * cosine)


def correct(
    name: str = "correct",
    profile: RotaryProfile | None = None,
    base: type[PlainRotary] = PlainRotary,
) -> RotaryImplementation:
    """Return the declaration of a rotary embedding of one profile."""
    function = base()
    function.profile = profile or RotaryProfile()
    return RotaryImplementation(
        name=name, function=function, features=FEATURES, profile=function.profile
    )


def rotary_mistake(
    identifier: str,
    title: str,
    *,
    killed_by: str,
    profile: RotaryProfile | None = None,
    source: str = "",
) -> Any:
    """Plant a class as a mutant of this declared profile."""

    def register(base: type[PlainRotary]) -> type[PlainRotary]:
        subject = correct(identifier, profile, base)
        plant(id=identifier, title=title, subject=subject, killed_by=killed_by, source=source)
        return base

    return register

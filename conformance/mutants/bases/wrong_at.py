"""A factory of attentions that are wrong in given regimes alone, to test what a run covers."""

from dataclasses import dataclass
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.modes import DEFAULTS, THREADS
from attnspec.conformance.attention.regimes import AXES, Regime
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.spec import CallMode


@dataclass(frozen=True)
class WrongAt:
    """An attention whose output is off by far in some regimes, and right elsewhere."""

    attention: Any
    regimes: tuple[Regime, ...]

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> Any:
        arguments: dict[str, Any] = options | {
            "attn_mask": attn_mask,
            "dropout_p": dropout_p,
            "is_causal": is_causal,
            "scale": scale,
        }
        out = self.attention(query, key, value, enable_gqa=enable_gqa, **arguments)
        call = Call(query=query, key=key, value=value, mode=_mode(), **arguments)
        if not all(regime.holds(call) for regime in self.regimes):
            return out
        if isinstance(out, tuple):
            return out[0] * 1.5 + 1, *out[1:]
        return out * 1.5 + 1


def wrong_at(*regimes: tuple[str, str], attention: Any = None) -> WrongAt:
    """Return an attention that is wrong where all of some regimes hold.

    Args:
        regimes: the axis and the class of each, as in `attnspec.conformance.attention.regimes`.
        attention: a correct one, by default one that computes all scores at once.

    Raises:
        KeyError: for an axis or a class that does not exist.
    """
    classes = {axis: {each.name: each for each in members} for axis, members in AXES.items()}
    return WrongAt(attention or Dense(), tuple(classes[axis][name] for axis, name in regimes))


def _mode() -> CallMode:
    """Return the mode in which torch is."""
    if torch.is_inference_mode_enabled():
        return CallMode.INFERENCE
    if not torch.is_grad_enabled():
        return CallMode.NO_GRAD
    if torch.are_deterministic_algorithms_enabled():
        return CallMode.DETERMINISTIC
    if torch.get_num_threads() == THREADS:
        return CallMode.THREADS
    modes = {dtype: mode for mode, dtype in DEFAULTS.items()}
    return modes.get(torch.get_default_dtype(), CallMode.PLAIN)

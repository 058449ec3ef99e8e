"""Rotary positions: pairs of channels, turned by angles that grow with the position."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Float64, Int

from attnspec.spec.rotary import Pairing, RotaryScaling, ScalingKind

BASE = 10_000.0
"""The base if none is given."""


def frequencies(rotary_dim: int, base: float = BASE) -> Float64[torch.Tensor, " pairs"]:
    r"""Return the angle of each pair from one position to the next.

    .. math:: \theta_i = b^{-2i/d}, \qquad 0 \le i < d/2

    Args:
        rotary_dim: :math:`d`, the channels that are turned; even.
        base: :math:`b`, greater than 1.

    Returns:
        Radians, from 1 down.

    Raises:
        ValueError: if `rotary_dim` is odd or not positive, or `base` is not greater than 1.

    Clauses:
        ROT-1, ROT-8

    Source:
        Su et al. 2021, section 3.2.2
    """
    if rotary_dim < 1 or rotary_dim % 2:
        raise ValueError(f"rotary_dim must be even and positive, got {rotary_dim}")
    if not base > 1:
        raise ValueError(f"base must be greater than 1, got {base}")
    return base ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def linear_frequencies(
    rotary_dim: int, base: float, scaling: RotaryScaling
) -> Float64[torch.Tensor, " pairs"]:
    r"""Divide every frequency by the factor, as if positions lay closer.

    .. math:: \theta'_i = \theta_i / s

    Args:
        rotary_dim: :math:`d`.
        base: :math:`b`.
        scaling: with the factor :math:`s`.

    Returns:
        Radians.

    Clauses:
        ROT-9

    Source:
        Chen et al. 2023, Extending Context Window of Large Language Models via Positional
        Interpolation, equation 4
    """
    return frequencies(rotary_dim, base) / scaling.factor


def dynamic_frequencies(
    rotary_dim: int, base: float, scaling: RotaryScaling, length: int
) -> Float64[torch.Tensor, " pairs"]:
    r"""Let the base grow with the length of the call, beyond the original length.

    .. math::
        \theta'_i = \bigl(b\, r^{d / (d - 2)}\bigr)^{-2i/d}, \qquad
        r = \max\Bigl(1,\; \frac{s L}{L_0} - (s - 1)\Bigr)

    Args:
        rotary_dim: :math:`d`, at least 4.
        base: :math:`b`.
        scaling: with the factor :math:`s` and the original length :math:`L_0`.
        length: :math:`L`, one more than the largest position of the call.

    Returns:
        Radians.

    Raises:
        ValueError: if `rotary_dim` is less than 4.

    Clauses:
        ROT-10

    Source:
        bloc97 and emozilla 2023, NTK-aware and dynamically scaled RoPE; transformers,
        `modeling_rope_utils.py`
    """
    if rotary_dim < 4:
        raise ValueError(f"rotary_dim must be at least 4 with dynamic, got {rotary_dim}")
    ratio = max(1.0, scaling.factor * length / scaling.original_length - (scaling.factor - 1))
    return frequencies(rotary_dim, base * ratio ** (rotary_dim / (rotary_dim - 2)))


def yarn_frequencies(
    rotary_dim: int, base: float, scaling: RotaryScaling
) -> Float64[torch.Tensor, " pairs"]:
    r"""Keep the frequencies of the first pairs, divide those of the last, and mix between.

    .. math::
        \theta'_i &= (1 - \gamma_i)\, \theta_i + \gamma_i\, \theta_i / s, \qquad
        \gamma_i = \mathrm{clamp}\Bigl(\frac{i - l}{h - l}, 0, 1\Bigr) \\
        l &= \max(0, \lfloor c(\beta_\text{fast}) \rfloor), \quad
        h = \min(d - 1, \lceil c(\beta_\text{slow}) \rceil), \quad
        c(\beta) = \frac{d \ln(L_0 / (2 \pi \beta))}{2 \ln b}

    Args:
        rotary_dim: :math:`d`.
        base: :math:`b`.
        scaling: with :math:`s`, :math:`L_0`, both :math:`\beta`, and `truncate`, without which
            the floor and the ceiling are left out.

    Returns:
        Radians.

    Clauses:
        ROT-11

    Source:
        Peng et al. 2023, YaRN: Efficient Context Window Extension of Large Language Models,
        section 3.2; the ramp over pairs is that of its code
    """

    def pair_with_turns(turns: float) -> float:
        """Return the pair, not a whole number, that turns so often within the original length."""
        ratio = scaling.original_length / (2 * math.pi * turns)
        return rotary_dim * math.log(ratio) / (2 * math.log(base))

    first, last = pair_with_turns(scaling.beta_fast), pair_with_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    width = last - first if last != first else 1e-3
    pairs = torch.arange(rotary_dim // 2, dtype=torch.float64)
    divided = ((pairs - first) / width).clamp(0, 1)
    theta = frequencies(rotary_dim, base)
    return (1 - divided) * theta + divided * theta / scaling.factor


def llama3_frequencies(
    rotary_dim: int, base: float, scaling: RotaryScaling
) -> Float64[torch.Tensor, " pairs"]:
    r"""Keep frequencies with many turns in the original length, divide those with few.

    .. math::
        \theta'_i = (1 - \gamma_i)\, \theta_i / s + \gamma_i\, \theta_i, \qquad
        \gamma_i = \mathrm{clamp}\Bigl(\frac{L_0 \theta_i / 2\pi - l}{h - l}, 0, 1\Bigr)

    Args:
        rotary_dim: :math:`d`.
        base: :math:`b`.
        scaling: with :math:`s`, :math:`L_0`, and the numbers of turns :math:`l` and :math:`h`,
            `low_freq_factor` and `high_freq_factor`.

    Returns:
        Radians.

    Clauses:
        ROT-12

    Source:
        Grattafiori et al. 2024, The Llama 3 Herd of Models; Meta, llama-models, `apply_scaling`
    """
    theta = frequencies(rotary_dim, base)
    turns = scaling.original_length * theta / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * theta / scaling.factor + kept * theta


def scaled_frequencies(
    rotary_dim: int, base: float, scaling: RotaryScaling | None, length: int
) -> Float64[torch.Tensor, " pairs"]:
    """Return the frequencies under any scaling or none.

    Args:
        rotary_dim: the channels that are turned; even.
        base: greater than 1.
        scaling: the rule; None for none.
        length: one more than the largest position of the call.

    Returns:
        Radians.

    Clauses:
        ROT-8, ROT-9, ROT-10, ROT-11, ROT-12
    """
    if scaling is None:
        return frequencies(rotary_dim, base)
    if scaling.kind is ScalingKind.LINEAR:
        return linear_frequencies(rotary_dim, base, scaling)
    if scaling.kind is ScalingKind.DYNAMIC:
        return dynamic_frequencies(rotary_dim, base, scaling, length)
    if scaling.kind is ScalingKind.YARN:
        return yarn_frequencies(rotary_dim, base, scaling)
    return llama3_frequencies(rotary_dim, base, scaling)


def turn(
    x: Float[torch.Tensor, "*batch d_head"],
    angles: Float64[torch.Tensor, "*angles pairs"],
    pairing: Pairing = Pairing.HALF,
    magnitude: float = 1.0,
) -> Float[torch.Tensor, "*batch d_head"]:
    r"""Turn the pairs of the first channels, and keep the channels after them.

    .. math::
        \begin{pmatrix} y_a \\ y_b \end{pmatrix} =
        m \begin{pmatrix} \cos\phi & -\sin\phi \\ \sin\phi & \cos\phi \end{pmatrix}
        \begin{pmatrix} x_a \\ x_b \end{pmatrix}

    Args:
        x: any unit.
        angles: :math:`\phi` in radians, for twice as many channels.
        pairing: the channels :math:`a` and :math:`b` of a pair.
        magnitude: :math:`m`.

    Returns:
        In the dtype of x.

    Clauses:
        ROT-1, ROT-2, ROT-3, ROT-6, ROT-7, ROT-15
    """
    rotary_dim = 2 * angles.shape[-1]
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    cosine, sine = (magnitude * angles.cos()).to(x.dtype), (magnitude * angles.sin()).to(x.dtype)
    if pairing is Pairing.HALF:
        a, b = turned[..., : rotary_dim // 2], turned[..., rotary_dim // 2 :]
        y = torch.cat([a * cosine - b * sine, a * sine + b * cosine], dim=-1)
    else:
        a, b = turned[..., 0::2], turned[..., 1::2]
        y = torch.stack([a * cosine - b * sine, a * sine + b * cosine], dim=-1).flatten(-2)
    return torch.cat([y, kept], dim=-1)


def rotary(
    x: Float[torch.Tensor, "batch heads length d_head"],
    positions: Int[torch.Tensor, "batch length"],
    *,
    rotary_dim: int | None = None,
    base: float = BASE,
    scaling: Mapping[str, Any] | None = None,
    pairing: Pairing = Pairing.HALF,
) -> Float[torch.Tensor, "batch heads length d_head"]:
    r"""Turn each token by its position.

    .. math:: \phi = p\, \theta_i

    Args:
        x: queries or keys.
        positions: :math:`p` of each token, from 0.
        rotary_dim: the channels that are turned; None for all.
        base: of the frequencies.
        scaling: `RotaryScaling.parameters`; None for none.
        pairing: the two channels of a pair.

    Returns:
        In the shape and dtype of x. Angles are computed in float64.

    Raises:
        ValueError: naming an argument that is out of range.

    Clauses:
        ROT-1, ROT-4, ROT-5, ROT-13, ROT-14, ROT-16, ROT-17, ROT-18, ROT-19, ROT-20

    Source:
        Su et al. 2021, RoFormer: Enhanced Transformer with Rotary Position Embedding, equation 34
    """
    rotary_dim = x.shape[-1] if rotary_dim is None else rotary_dim
    if rotary_dim > x.shape[-1]:
        raise ValueError(f"rotary_dim must be at most {x.shape[-1]}, got {rotary_dim}")
    rule = None if scaling is None else RotaryScaling.read(scaling)
    length = int(positions.max()) + 1 if positions.numel() else 0
    theta = scaled_frequencies(rotary_dim, base, rule, length)
    angles = positions[:, None, :, None].double() * theta.to(x.device)
    return turn(x, angles, pairing, 1.0 if rule is None else rule.magnitude)


def convert_pairing(
    rows: Float[torch.Tensor, "rows ..."], heads: int, rotary_dim: int, to: Pairing
) -> Float[torch.Tensor, "rows ..."]:
    """Reorder the rows of a projection so that its heads are paired the other way.

    Args:
        rows: of the weight or the bias of the queries or the keys, head after head, paired the
            other way than `to`.
        heads: of this projection.
        rotary_dim: the channels of a head that are turned; the rows of the others stay.
        to: the pairing of the result.

    Returns:
        The same rows in another order. Scores of queries and keys that are both reordered stay.

    Raises:
        ValueError: if the rows are not as many for each head, or fewer than `rotary_dim`.

    Clauses:
        ROT-6
    """
    if len(rows) % heads or rotary_dim > len(rows) // heads:
        raise ValueError(
            f"rows must be {heads} times the same number of at least {rotary_dim}, got {len(rows)}"
        )
    channels = torch.arange(len(rows)).reshape(heads, -1)
    turned, kept = channels[:, :rotary_dim], channels[:, rotary_dim:]
    if to is Pairing.INTERLEAVED:
        turned = turned.reshape(heads, 2, rotary_dim // 2).mT.flatten(1)
    else:
        turned = turned.reshape(heads, rotary_dim // 2, 2).mT.flatten(1)
    return rows[torch.cat([turned, kept], dim=1).flatten()]

"""Cases of an encoder-decoder: a small configuration, its parameters, and a batch of pairs."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.operators.padding import SIDES, draw_mask
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec.encoder_decoder import EncoderDecoderConfig, Positions

ACTS = ("relu", "gelu", "gelu_new")
"""The activation functions of cases."""


_MATRICES = ("_proj.weight", ".fc1.weight", ".fc2.weight")


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderCase:
    """One model and one batch of pairs of source and target.

    Attributes:
        encoder_layers: blocks of the encoder.
        decoder_layers: blocks of the decoder.
        encoder_heads: heads of the encoder; they divide `d_model`.
        decoder_heads: heads of the decoder; they divide `d_model`.
        d_model: channels of a state; even.
        encoder_inner: channels inside the feed-forward networks of the encoder.
        decoder_inner: channels inside the feed-forward networks of the decoder.
        vocab: token ids.
        positions: the longest text.
        act: the activation function.
        epsilon: of every LayerNorm.
        learned: whether positions are learned, as in BART.
        scaled: whether the rows of tokens are scaled.
        norm_first: whether LayerNorm precedes each branch.
        final_norm: whether a LayerNorm follows the last block.
        batch: pairs.
        source: length of each source, with its padding.
        target: length of each target, with its padding.
        padded: whether sources have different lengths, and a mask.
        target_padded: whether targets have different lengths, and a mask.
        padding_side: the place of padding on both sides: `right`, `left` or `anywhere`.
        states: whether hidden states are requested.
        chunks: numbers of target tokens of each step; empty for one call with all of them.
        backward: whether gradients are computed.
        dtype: of the parameters.
        seed: selects the numbers.
    """

    encoder_layers: int = 1
    decoder_layers: int = 1
    encoder_heads: int = 1
    decoder_heads: int = 2
    d_model: int = 4
    encoder_inner: int = 6
    decoder_inner: int = 5
    vocab: int = 7
    positions: int = 9
    act: str = "relu"
    epsilon: float = 1e-5
    learned: bool = False
    scaled: bool = True
    norm_first: bool = False
    final_norm: bool = False
    batch: int = 1
    source: int = 4
    target: int = 3
    padded: bool = False
    target_padded: bool = False
    padding_side: str = "right"
    states: bool = False
    chunks: tuple[int, ...] = ()
    backward: bool = False
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def __str__(self) -> str:
        """Return the sizes, the dtype, and the fields that differ from the default."""
        words = []
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "dtype":
                words.append(f"dtype={str(value).removeprefix('torch.')}")
            elif item.name in ("batch", "source", "target") or value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        used = {
            "sinusoidal": not self.learned,
            "learned": self.learned,
            "pre_norm": self.norm_first,
            "final_norm": self.final_norm,
            "padding": self.padded,
            "target_padding": self.target_padded,
            "any_padding": self.padded and self.padding_side != "right",
            "any_target_padding": self.target_padded and self.padding_side != "right",
            "hidden_states": self.states,
            "steps": bool(self.chunks),
            "gradients": self.backward,
        }
        return frozenset(name for name, is_used in used.items() if is_used)

    def but(self, **changes: Any) -> "EncoderDecoderCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    @property
    def config(self) -> EncoderDecoderConfig:
        """The configuration that the model is built from."""
        return EncoderDecoderConfig(
            vocab_size=self.vocab,
            d_model=self.d_model,
            encoder_layers=self.encoder_layers,
            decoder_layers=self.decoder_layers,
            encoder_attention_heads=self.encoder_heads,
            decoder_attention_heads=self.decoder_heads,
            encoder_ffn_dim=self.encoder_inner,
            decoder_ffn_dim=self.decoder_inner,
            activation_function=self.act,
            position_embedding=Positions.LEARNED if self.learned else Positions.SINUSOIDAL,
            max_position_embeddings=self.positions,
            scale_embedding=self.scaled,
            norm_first=self.norm_first,
            final_norm=self.final_norm,
            layer_norm_eps=self.epsilon,
        )

    def draw_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters, far larger than those of training, so that mistakes are visible.

        Every gain is about one, and no two channels have the same. Scores and branches are half
        as large as states.
        """
        result = {}
        for name, shape in shapes(self.config).items():
            drawn = normal(self.seed, name, *shape)
            if "norm" in name and name.endswith(".weight"):
                drawn = 1 + 0.25 * drawn.clamp(-3, 3)
            elif name.endswith(_MATRICES):
                drawn = (1.0 if "v_proj" in name or "fc1" in name else 0.5) * drawn
                drawn = drawn * shape[1] ** -0.5
            elif name.endswith(".bias") or name == "final_logits_bias":
                drawn = 0.5 * drawn
            result[name] = drawn.to(self.dtype)
        return result

    def draw(self) -> dict[str, torch.Tensor]:
        """Return the ids of both sides, and masks if there are any, as a call takes them."""
        draws = torch.Generator().manual_seed(self.seed)
        source, target = (self.batch, self.source), (self.batch, self.target)
        inputs = {
            "input_ids": torch.randint(self.vocab, source, generator=draws),
            "decoder_input_ids": torch.randint(self.vocab, target, generator=draws),
        }
        if self.padded:
            inputs["attention_mask"] = self._mask(self.source_lengths, self.source)
        if self.target_padded:
            inputs["decoder_attention_mask"] = self._mask(self.target_lengths, self.target)
        return inputs

    def draw_cotangent(self) -> torch.Tensor:
        """Return the incoming gradient of the logits, zero at positions of padding."""
        drawn = normal(self.seed, "cotangent", self.batch, self.target, self.vocab)
        is_real = self._mask(self.target_lengths, self.target)
        return (drawn * is_real[..., None]).to(self.dtype)

    def _mask(self, lengths: list[int], longest: int) -> torch.Tensor:
        return draw_mask(lengths, longest, self.padding_side, self.seed)

    @property
    def source_lengths(self) -> list[int]:
        """The number of real tokens of each source."""
        if not self.padded:
            return [self.source] * self.batch
        first = self.seed + self.source // 2
        return [1 + (first + 2 * text) % self.source for text in range(self.batch)]

    @property
    def target_lengths(self) -> list[int]:
        """The number of real tokens of each target."""
        if not self.target_padded:
            return [self.target] * self.batch
        first = self.seed + self.target // 2
        return [1 + (first + text) % self.target for text in range(self.batch)]


def shapes(config: EncoderDecoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by its name in a state dictionary."""
    width = config.d_model
    result: dict[str, tuple[int, ...]] = {
        "model.shared.weight": (config.vocab_size, width),
        "final_logits_bias": (1, config.vocab_size),
    }
    maps: dict[str, tuple[int, int]] = {}
    norms = []
    sides = (
        ("encoder", config.encoder_layers, config.encoder_ffn_dim, ("self_attn",)),
        ("decoder", config.decoder_layers, config.decoder_ffn_dim, ("self_attn", "encoder_attn")),
    )
    for side, layers, inner, attentions in sides:
        if config.position_embedding is Positions.LEARNED:
            rows = config.max_position_embeddings + 2
            result[f"model.{side}.embed_positions.weight"] = (rows, width)
            norms.append(f"model.{side}.layernorm_embedding")
        for layer in range(layers):
            name = f"model.{side}.layers.{layer}"
            for attention in attentions:
                for part in ("q", "k", "v", "out"):
                    maps[f"{name}.{attention}.{part}_proj"] = (width, width)
                norms.append(f"{name}.{attention}_layer_norm")
            maps |= {f"{name}.fc1": (inner, width), f"{name}.fc2": (width, inner)}
            norms.append(f"{name}.final_layer_norm")
        if config.final_norm:
            norms.append(f"model.{side}.layer_norm")
    for name, shape in maps.items():
        result |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        result |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return result


WIDTHS = ((4, (1, 2, 4)), (6, (1, 2, 3)), (8, (1, 2, 4)), (12, (1, 2, 3, 4, 6)))
"""Numbers of channels of drawn cases, and numbers of heads that divide them."""


def drawn_cases(features: frozenset[str], **fixed: Any) -> st.SearchStrategy[EncoderDecoderCase]:
    """Return a strategy that draws cases of given features, with some fields given."""

    def flag(feature: str) -> st.SearchStrategy[bool]:
        return st.booleans() if feature in features else st.just(False)

    drawn: dict[str, st.SearchStrategy[Any]] = {
        "encoder_layers": st.integers(1, 3),
        "decoder_layers": st.integers(1, 3),
        "encoder_inner": st.sampled_from([1, 3, 8, 17]),
        "decoder_inner": st.sampled_from([2, 5, 16]),
        "vocab": st.sampled_from([2, 5, 11]),
        "positions": st.sampled_from([9, 12]),
        "act": st.sampled_from(ACTS),
        "epsilon": st.sampled_from([1e-5, 1e-6, 0.1]),
        "learned": st.sampled_from(
            [is_learned for is_learned in (False, True) if _POSITIONS[is_learned] in features]
            or [False]
        ),
        "scaled": st.booleans(),
        "norm_first": flag("pre_norm"),
        "final_norm": flag("final_norm"),
        "batch": st.integers(1, 3),
        "source": st.integers(1, 9),
        "target": st.integers(1, 9),
        "padded": flag("padding"),
        "target_padded": flag("target_padding"),
        "padding_side": st.sampled_from(
            SIDES if {"any_padding", "any_target_padding"} <= features else SIDES[:1]
        ),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {
        name: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for name, value in fixed.items()
    }
    if "d_model" in fixed:
        return st.builds(EncoderDecoderCase, **strategies)
    return st.sampled_from(WIDTHS).flatmap(
        lambda width: st.builds(
            EncoderDecoderCase,
            **{
                "encoder_heads": st.sampled_from(width[1]),
                "decoder_heads": st.sampled_from(width[1]),
                **strategies,
                "d_model": st.just(width[0]),
            },
        )
    )


_POSITIONS = {False: "sinusoidal", True: "learned"}


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[EncoderDecoderCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    implementation = subject.implementation
    layers = {"encoder_layers": st.integers(1, 2), "decoder_layers": st.integers(1, 2)}
    dtypes = {"dtype": st.sampled_from(implementation.dtypes)}
    drawn = drawn_cases(implementation.features, **{**layers, **dtypes, **fixed})
    return drawn.filter(lambda case: subject.refuses(case) is None)


def divided(width: int) -> dict[str, Any]:
    """Return fields of drawn cases of a width: the width, and numbers of heads that divide it."""
    heads = st.sampled_from(dict(WIDTHS)[width])
    return {"d_model": width, "encoder_heads": heads, "decoder_heads": heads}

"""Cases of a BERT: a small configuration, its parameters, and a batch of texts."""

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.operators.padding import SIDES, draw_mask
from attnspec.conformance.operators.rows_case import normal
from attnspec.spec.encoder import BertConfig

ACTS = ("gelu", "gelu_new", "relu")
"""The activation functions of cases."""


@dataclass(frozen=True, kw_only=True)
class BertCase:
    """One model and one batch of texts.

    Attributes:
        layers: blocks.
        heads: heads of each block.
        d_head: channels of a head.
        d_inner: channels inside the feed-forward network.
        vocab: token ids.
        positions: rows of the position table; at least the length.
        types: rows of the table of token types.
        act: the activation function.
        epsilon: of every LayerNorm.
        batch: texts.
        length: of each text, with its padding.
        padded: whether texts have different lengths, and a mask.
        padding_side: the place of padding: `right`, `left` or `anywhere`.
        typed: whether token types are given.
        states: whether hidden states are requested.
        pooled: whether pooled vectors are.
        backward: whether gradients are computed.
        dtype: of the parameters.
        seed: selects the numbers.
    """

    layers: int = 1
    heads: int = 1
    d_head: int = 4
    d_inner: int = 6
    vocab: int = 7
    positions: int = 6
    types: int = 2
    act: str = "gelu"
    epsilon: float = 1e-12
    batch: int = 1
    length: int = 3
    padded: bool = False
    padding_side: str = "right"
    typed: bool = False
    states: bool = False
    pooled: bool = False
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
            elif item.name in ("layers", "heads", "batch", "length") or value != item.default:
                words.append(f"{item.name}={value}")
        return " ".join(words)

    @property
    def features(self) -> frozenset[str]:
        """The features that the call uses."""
        used = {
            "padding": self.padded,
            "any_padding": self.padded and self.padding_side != "right",
            "token_types": self.typed,
            "hidden_states": self.states,
            "pooler": self.pooled,
            "gradients": self.backward,
        }
        return frozenset(name for name, is_used in used.items() if is_used)

    def but(self, **changes: Any) -> "BertCase":
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    @property
    def config(self) -> BertConfig:
        """The configuration that the model is built from."""
        return BertConfig(
            vocab_size=self.vocab,
            hidden_size=self.heads * self.d_head,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.d_inner,
            hidden_act=self.act,
            max_position_embeddings=self.positions,
            type_vocab_size=self.types,
            layer_norm_eps=self.epsilon,
        )

    def draw_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters, far larger than those of training, so that mistakes are visible.

        Every gain is about one, and no two channels have the same.
        """
        result = {}
        for name, shape in shapes(self.config).items():
            drawn = normal(self.seed, name, *shape)
            if name.endswith("LayerNorm.weight"):
                drawn = 1 + 0.25 * drawn.clamp(-3, 3)
            elif len(shape) == 2 and "embeddings" not in name:
                drawn = drawn * shape[1] ** -0.5
            elif len(shape) == 1:
                drawn = 0.5 * drawn
            result[name] = drawn.to(self.dtype)
        return result

    def draw(self) -> dict[str, torch.Tensor]:
        """Return ids, and mask and token types if there are any, as a call takes them."""
        draws = torch.Generator().manual_seed(self.seed)
        shape = (self.batch, self.length)
        options = {"input_ids": torch.randint(self.vocab, shape, generator=draws)}
        if self.padded:
            options["attention_mask"] = self.mask
        if self.typed:
            types = torch.randint(self.types, shape, generator=draws)
            types[:, -1] = self.types - 1  # zeros alone would hide them
            options["token_type_ids"] = types
        return options

    def draw_cotangent(self) -> torch.Tensor:
        """Return the incoming gradient of the logits, zero at positions of padding."""
        drawn = normal(self.seed, "cotangent", self.batch, self.length, self.vocab)
        return (drawn * self.mask[..., None]).to(self.dtype)

    @property
    def mask(self) -> torch.Tensor:
        """1 for real tokens and 0 for padding, (batch, length)."""
        return draw_mask(self.lengths, self.length, self.padding_side, self.seed)

    @property
    def lengths(self) -> list[int]:
        """The number of real tokens of each text."""
        if not self.padded:
            return [self.length] * self.batch
        first = self.seed + self.length // 2
        return [1 + (first + 2 * text) % self.length for text in range(self.batch)]


def shapes(config: BertConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of each parameter by its name in a state dictionary."""
    width, inner = config.hidden_size, config.intermediate_size
    tables = {
        "word": config.vocab_size,
        "position": config.max_position_embeddings,
        "token_type": config.type_vocab_size,
    }
    result: dict[str, tuple[int, ...]] = {
        f"bert.embeddings.{name}_embeddings.weight": (rows, width) for name, rows in tables.items()
    }
    maps = {"bert.pooler.dense": (width, width), "cls.predictions.transform.dense": (width, width)}
    norms = ["bert.embeddings.LayerNorm", "cls.predictions.transform.LayerNorm"]
    for layer in range(config.num_hidden_layers):
        name = f"bert.encoder.layer.{layer}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            maps[f"{name}.attention.{part}"] = (width, width)
        maps[f"{name}.intermediate.dense"] = (inner, width)
        maps[f"{name}.output.dense"] = (width, inner)
        norms += [f"{name}.attention.output.LayerNorm", f"{name}.output.LayerNorm"]
    for name, shape in maps.items():
        result |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        result |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    result["cls.predictions.bias"] = (config.vocab_size,)
    return result


def cases(subject: Any, **fixed: Any) -> st.SearchStrategy[BertCase]:
    """Return a strategy that draws cases a subject claims, with some fields given."""
    features = subject.implementation.features

    def flag(feature: str) -> st.SearchStrategy[bool]:
        return st.booleans() if feature in features else st.just(False)

    drawn: dict[str, st.SearchStrategy[Any]] = {
        "layers": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "d_head": st.sampled_from([2, 3, 4, 8]),
        "d_inner": st.sampled_from([1, 3, 8, 17]),
        "vocab": st.sampled_from([2, 5, 11]),
        "positions": st.sampled_from([9, 12]),
        "types": st.integers(1, 3),
        "act": st.sampled_from(ACTS),
        "epsilon": st.sampled_from([1e-12, 1e-5, 0.1]),
        "batch": st.integers(1, 3),
        "length": st.integers(1, 9),
        "padded": flag("padding"),
        "padding_side": st.sampled_from(SIDES if "any_padding" in features else SIDES[:1]),
        "typed": flag("token_types"),
        "dtype": st.sampled_from(subject.implementation.dtypes),
        "seed": st.integers(0, 2**16 - 1),
    }
    strategies = drawn | {
        name: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for name, value in fixed.items()
    }
    built: st.SearchStrategy[BertCase] = st.builds(BertCase, **strategies)
    return built.filter(lambda case: subject.refuses(case) is None)

"""Cases for GPT-2 models: a small odd configuration, its weights, and the tokens it is shown."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st
from jaxtyping import Float, Int

from attnspec.conformance.values import generator
from attnspec.spec import GPT2Config, ModelImplementation


class Padding(StrEnum):
    """On which side the rows of a batch are filled up to one length."""

    NONE = "none"
    LEFT = "left"
    RIGHT = "right"


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One model and one batch of tokens, small enough to print.

    The tensors follow from it by `draw`. Sizes are counts; `initializer_range` is the standard
    deviation of every weight, far above the 0.02 of training so that mistakes show.
    """

    n_layer: int = 1
    n_head: int = 1
    d_head: int = 2
    vocab_size: int = 5
    n_positions: int = 4
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tied: bool = True
    batch: int = 1
    length: int = 2
    padding: Padding = Padding.NONE
    dtype: torch.dtype = torch.float64
    initializer_range: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.length <= self.n_positions:
            raise ValueError(f"length must lie in 1..{self.n_positions}, got {self.length}")
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")

    @property
    def n_embd(self) -> int:
        """Channels of the residual stream."""
        return self.n_head * self.d_head

    @property
    def config(self) -> GPT2Config:
        """The configuration that the model is built from."""
        return GPT2Config(
            vocab_size=self.vocab_size,
            n_positions=self.n_positions,
            n_embd=self.n_embd,
            n_layer=self.n_layer,
            n_head=self.n_head,
            n_inner=self.n_inner,
            activation_function=self.activation_function,
            layer_norm_epsilon=self.layer_norm_epsilon,
            scale_attn_weights=self.scale_attn_weights,
            scale_attn_by_inverse_layer_idx=self.scale_attn_by_inverse_layer_idx,
            tie_word_embeddings=self.tied,
        )

    def but(self, **changes: Any) -> "ModelCase":
        """The same case with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        """The sizes, and whatever else differs from the smallest case."""
        always = ("n_layer", "n_head", "d_head", "vocab_size", "batch", "length", "dtype")
        given = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {item.name: item.default for item in fields(self)}
        return " ".join(
            f"{name}={str(value).removeprefix('torch.')}"
            for name, value in given.items()
            if name in always or value != plain[name]
        )


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """What a case stands for.

    Attributes:
        config: the configuration to build.
        state_dict: the weights under Hugging Face's names, in the dtype to compute in.
        input_ids: ids below `config.vocab_size`; those at padding mean nothing.
        attention_mask: 1 at real tokens, 0 at padding.
        position_ids: 0, 1, 2, ... along the real tokens of each row; 0 at padding.
    """

    config: GPT2Config
    state_dict: Mapping[str, torch.Tensor]
    input_ids: Int[torch.Tensor, "batch length"]
    attention_mask: Int[torch.Tensor, "batch length"]
    position_ids: Int[torch.Tensor, "batch length"]


def normal(seed: int, purpose: str, *shape: int) -> Float[torch.Tensor, "..."]:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator(seed, purpose), dtype=torch.float64)


def shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """The shape of every weight by its name; linear maps are stored input-major."""
    d, inner = config.n_embd, config.d_inner
    named: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (config.vocab_size, d),
        "transformer.wpe.weight": (config.n_positions, d),
    }
    for layer in range(config.n_layer):
        block = f"transformer.h.{layer}"
        named |= {
            f"{block}.ln_1.weight": (d,),
            f"{block}.ln_1.bias": (d,),
            f"{block}.attn.c_attn.weight": (d, 3 * d),
            f"{block}.attn.c_attn.bias": (3 * d,),
            f"{block}.attn.c_proj.weight": (d, d),
            f"{block}.attn.c_proj.bias": (d,),
            f"{block}.ln_2.weight": (d,),
            f"{block}.ln_2.bias": (d,),
            f"{block}.mlp.c_fc.weight": (d, inner),
            f"{block}.mlp.c_fc.bias": (inner,),
            f"{block}.mlp.c_proj.weight": (inner, d),
            f"{block}.mlp.c_proj.bias": (d,),
        }
    named |= {"transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,)}
    return (
        named if config.tie_word_embeddings else named | {"lm_head.weight": (config.vocab_size, d)}
    )


def draw_weights(
    config: GPT2Config, *, seed: int, spread: float, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Draw every weight; also biases and LayerNorm gains, whose usual zeros and ones hide mistakes.

    Args:
        config: says which weights there are.
        seed: of the random numbers.
        spread: standard deviation of a weight about its mean: 1 for gains, 0 for all others.
        dtype: to round to.
    """
    return {
        name: (spread * normal(seed, name, *shape) + float(".ln_" in name and "weight" in name)).to(
            dtype
        )
        for name, shape in shapes(config).items()
    }


def draw(case: ModelCase) -> ModelInputs:
    """Make the weights and tokens that a case stands for: the same bits on every machine."""
    config = case.config
    ids = torch.randint(
        case.vocab_size, (case.batch, case.length), generator=generator(case.seed, "ids")
    )
    # rows of different lengths, the first one always full, none empty
    missing = (torch.arange(case.batch) * (1 + case.seed % 3)) % case.length
    column = torch.arange(case.length)
    real = {
        Padding.NONE: torch.ones(case.batch, case.length, dtype=torch.bool),
        Padding.LEFT: column >= missing[:, None],
        Padding.RIGHT: column < case.length - missing[:, None],
    }[case.padding]
    positions = (real.long().cumsum(-1) - 1).clamp(min=0)
    return ModelInputs(
        config=config,
        state_dict=draw_weights(
            config, seed=case.seed, spread=case.initializer_range, dtype=case.dtype
        ),
        input_ids=ids,
        attention_mask=real.long(),
        position_ids=positions * real,
    )


_SMALL: tuple[ModelCase, ...] = (
    ModelCase(),
    ModelCase(n_head=2, d_head=3, length=4, vocab_size=7, seed=1),
    ModelCase(
        n_layer=2, n_head=3, d_head=4, length=5, n_positions=6, batch=2, vocab_size=11, seed=2,
    ),
    ModelCase(
        n_layer=2, n_head=2, d_head=3, length=5, n_positions=5, scale_attn_weights=False, seed=3,
    ),
    ModelCase(
        n_layer=3, n_head=2, d_head=2, length=6, n_positions=8, initializer_range=0.5,
        scale_attn_by_inverse_layer_idx=True, batch=2, seed=4,
    ),
    ModelCase(n_head=1, d_head=6, length=3, n_inner=5, activation_function="relu", seed=5),
    ModelCase(n_head=3, d_head=2, length=3, n_inner=7, activation_function="gelu", seed=6),
    ModelCase(n_head=2, d_head=4, length=3, activation_function="silu", tied=False, seed=7),
    ModelCase(n_layer=2, n_head=2, d_head=2, length=4, layer_norm_epsilon=0.25, seed=8),
    ModelCase(
        n_layer=2, n_head=5, d_head=3, length=7, n_positions=9, n_inner=13, vocab_size=17, batch=3,
        scale_attn_weights=False, scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=1e-3,
        tied=False, initializer_range=0.2, seed=9,
    ),
)  # fmt: skip

PINNED: tuple[ModelCase, ...] = tuple(
    case.but(dtype=dtype) for case in _SMALL for dtype in (torch.float64, torch.float32)
)
"""Cases to try first, smallest first: every switch away from its default at least once."""

PADDED: tuple[ModelCase, ...] = tuple(
    case.but(padding=side, batch=3, n_positions=8, length=case.length + 1)
    for case in PINNED[2:6]
    for side in (Padding.LEFT, Padding.RIGHT)
)
"""Cases with padding, smallest first."""

ACTIVATIONS = ("gelu_new", "gelu", "relu", "silu", "tanh")
"""Values of `activation_function` that are tried; an implementation may refuse some."""


def model_cases(
    subject: ModelImplementation, *, padded: bool = False, **fixed: Any
) -> st.SearchStrategy[ModelCase]:
    """Cases of which a model claims the dtype and the configuration.

    Args:
        subject: whose dtypes are drawn from.
        padded: whether rows are padded, on one side or the other.
        fixed: fields that every case shall have.
    """
    dtypes = [each for each in (torch.float32, torch.float64) if each in subject.dtypes]
    if not dtypes:
        return st.nothing()

    def build(drawn: dict[str, Any]) -> ModelCase:
        spare = drawn.pop("spare")
        return ModelCase(**{"n_positions": drawn["length"] + spare} | drawn | fixed)

    sides = (Padding.LEFT, Padding.RIGHT) if padded else (Padding.NONE,)
    recipe = st.fixed_dictionaries(
        {
            "n_layer": st.integers(1, 3),
            "n_head": st.sampled_from([1, 2, 3, 5]),
            "d_head": st.sampled_from([2, 3, 4, 5, 7, 8]),
            "vocab_size": st.integers(2, 23),
            "n_inner": st.one_of(st.none(), st.integers(1, 19)),
            "activation_function": st.sampled_from(ACTIVATIONS),
            "layer_norm_epsilon": st.sampled_from([1e-5, 1e-6, 1e-3, 0.25]),
            "scale_attn_weights": st.booleans(),
            "scale_attn_by_inverse_layer_idx": st.booleans(),
            "tied": st.booleans(),
            "batch": st.integers(2 if padded else 1, 3),
            "length": st.integers(2 if padded else 1, 9),
            "spare": st.integers(0, 3),
            "padding": st.sampled_from(sides),
            "dtype": st.sampled_from(dtypes),
            "initializer_range": st.sampled_from([0.1, 0.3, 0.5]),
            "seed": st.integers(0, 2**16),
        }
    )
    return recipe.map(build).filter(lambda case: subject.supports(case.config) is None)

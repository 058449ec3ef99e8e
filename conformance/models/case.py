"""Cases for GPT-2 models: a small odd configuration, its weights, and the input tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from hypothesis import strategies as st
from jaxtyping import Float, Int

from attnspec.conformance.attention.values import generator
from attnspec.spec import GPT2Config, ModelImplementation


class Padding(StrEnum):
    """The side on which the rows of a batch are padded to one length."""

    NONE = "none"
    LEFT = "left"
    RIGHT = "right"
    ENDS = "ends"
    """Every second row on the left, the others on the right."""


@dataclass(frozen=True, kw_only=True)
class ModelCase:
    """One model and one batch of tokens, small enough to print.

    `draw` makes the tensors from it. Sizes are counts; `initializer_range` is the standard
    deviation of every weight, far above the 0.02 of training, so that errors are visible.
    `embedding_range` is that of the two tables of embeddings, if it is another: in a deep model
    blocks that are small beside the stream keep the bound narrow.
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
    embedding_range: float | None = None
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
        """Return the same case with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        """Return the sizes, and every other field that differs from its default."""
        always = ("n_layer", "n_head", "d_head", "vocab_size", "batch", "length", "dtype")
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        defaults = {item.name: item.default for item in fields(self)}
        return " ".join(
            f"{name}={str(value).removeprefix('torch.')}"
            for name, value in values.items()
            if name in always or value != defaults[name]
        )


@dataclass(frozen=True, kw_only=True)
class ModelInputs:
    """The model parameters and the batch of a case.

    Attributes:
        config: the configuration to build.
        state_dict: the weights under Hugging Face's names, in the dtype to compute in.
        input_ids: ids below `config.vocab_size`; ids at padding are ignored.
        attention_mask: 1 at real tokens, 0 at padding.
        position_ids: 0, 1, 2, ... along the real tokens of each row; 0 at padding.
    """

    config: GPT2Config
    state_dict: Mapping[str, torch.Tensor]
    input_ids: Int[torch.Tensor, "batch length"]
    attention_mask: Int[torch.Tensor, "batch length"]
    position_ids: Int[torch.Tensor, "batch length"]


def normal(seed: int, purpose: str, *shape: int) -> Float[torch.Tensor, "..."]:
    """Return standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator(seed, purpose), dtype=torch.float64)


def shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by its name; linear maps are stored input-major."""
    d, inner = config.n_embd, config.d_inner
    by_name: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (config.vocab_size, d),
        "transformer.wpe.weight": (config.n_positions, d),
    }
    for layer in range(config.n_layer):
        block = f"transformer.h.{layer}"
        by_name |= {
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
    by_name |= {"transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,)}
    if config.tie_word_embeddings:
        return by_name
    return by_name | {"lm_head.weight": (config.vocab_size, d)}


def draw_parameters(
    config: GPT2Config,
    *,
    seed: int,
    spread: float,
    dtype: torch.dtype,
    embedding_spread: float | None = None,
) -> dict[str, torch.Tensor]:
    """Draw every model parameter; also biases and gains, whose usual zeros and ones hide bugs.

    Args:
        config: the configuration, which determines the names and shapes.
        seed: the seed of the random numbers.
        spread: standard deviation of a parameter about its mean, which is 1 for gains, else 0.
        dtype: the dtype of the parameters.
        embedding_spread: the standard deviation of the embeddings, if it is another.
    """
    parameters = {}
    for name, shape in shapes(config).items():
        is_table = name.startswith(("transformer.wte", "transformer.wpe"))
        deviation = embedding_spread if is_table and embedding_spread is not None else spread
        mean = float(".ln_" in name and "weight" in name)
        parameters[name] = (deviation * normal(seed, name, *shape) + mean).to(dtype)
    return parameters


def draw(case: ModelCase) -> ModelInputs:
    """Return the weights and tokens of a case: the same bits on every machine."""
    config = case.config
    ids = torch.randint(
        case.vocab_size, (case.batch, case.length), generator=generator(case.seed, "ids")
    )
    if case.vocab_size > 2**15:
        # the last ids of a large vocabulary, which seldom occur by chance
        ids[:, case.length // 2] = case.vocab_size - 1
        ids[:, -1] = case.vocab_size - 2
    # rows of different lengths, none empty; the first one is full unless sides are mixed
    row, column = torch.arange(case.batch), torch.arange(case.length)
    place = row + 1 if case.padding is Padding.ENDS else row
    missing = (place * (1 + case.seed % 3)) % case.length
    left, right = column >= missing[:, None], column < case.length - missing[:, None]
    is_real = {
        Padding.NONE: torch.ones(case.batch, case.length, dtype=torch.bool),
        Padding.LEFT: left,
        Padding.RIGHT: right,
        Padding.ENDS: torch.where((row % 2 == 1)[:, None], left, right),
    }[case.padding]
    positions = (is_real.long().cumsum(-1) - 1).clamp(min=0)
    return ModelInputs(
        config=config,
        state_dict=draw_parameters(
            config,
            seed=case.seed,
            spread=case.initializer_range,
            dtype=case.dtype,
            embedding_spread=case.embedding_range,
        ),
        input_ids=ids,
        attention_mask=is_real.long(),
        position_ids=positions * is_real,
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
"""Cases to try first, smallest first: every switch is off its default at least once."""

_DEEP = ModelCase(
    n_layer=19, n_head=17, d_head=2, length=35, n_positions=40, vocab_size=300, batch=9,
    initializer_range=0.05, embedding_range=4.0, seed=10,
)  # fmt: skip

DEEP: tuple[ModelCase, ...] = (
    _DEEP,
    _DEEP.but(dtype=torch.float32),
    _DEEP.but(scale_attn_by_inverse_layer_idx=True, seed=11),
)
"""Cases of nineteen narrow layers, some numbers of which have two digits, and of 17 heads.

There are more layers, heads, rows, tokens and ids than tables and loops of a fixed size often hold,
and the name of layer 1 begins the name of layer 10.
"""

MANY: tuple[ModelCase, ...] = tuple(
    case.but(dtype=dtype)
    for case in (
        ModelCase(vocab_size=50257, length=4, batch=2, seed=12),
        ModelCase(vocab_size=7, length=1040, n_positions=1040, seed=13),
        ModelCase(vocab_size=70_000, length=4, batch=2, seed=2),
        ModelCase(vocab_size=7, length=70, n_positions=80, batch=3, seed=17),
        # the width of the smallest released model
        ModelCase(n_head=12, d_head=64, length=3, initializer_range=0.02, seed=18),
        ModelCase(n_head=2, d_head=64, length=3, initializer_range=0.05, seed=15),
    )
    for dtype in (torch.float64, torch.float32)
)
MANY += (
    ModelCase(n_head=12, d_head=64, length=17, n_positions=20, initializer_range=0.02, seed=18),
    ModelCase(n_head=12, d_head=64, length=70, n_positions=80, initializer_range=0.02, seed=18),
    # heads wider than 64, as in Cerebras-GPT
    *(
        ModelCase(d_head=80, length=3, initializer_range=0.05, seed=41, dtype=dtype)
        for dtype in (torch.float64, torch.float32)
    ),
    ModelCase(d_head=128, length=3, initializer_range=0.05, seed=41),
    ModelCase(n_head=2, d_head=96, length=17, n_positions=20, initializer_range=0.05, seed=41),
    # a batch of over 4 096 tokens
    *(
        ModelCase(
            vocab_size=7, length=33, n_positions=33, batch=130, initializer_range=0.05, seed=43,
            dtype=dtype,
        )
        for dtype in (torch.float64, torch.float32)
    ),
    ModelCase(vocab_size=7, d_head=3, length=1600, n_positions=1600, seed=42),
    # over 512 tokens for more layers and heads than a loop of a fixed size holds
    ModelCase(
        n_layer=6, n_head=9, d_head=1, length=520, n_positions=520, vocab_size=7,
        initializer_range=0.05, seed=44,
    ),
)  # fmt: skip
"""Cases whose ids do not fit into 15 or 16 bits, of over 1 024 positions, or of the widths of
released models, or larger in one size than the others."""

WIDE_HEADS: tuple[ModelCase, ...] = tuple(
    ModelCase(
        n_layer=2, n_head=2, d_head=64, length=33, n_positions=40, batch=2, vocab_size=11,
        initializer_range=0.05, seed=23, dtype=dtype,
    )
    for dtype in (torch.float64, torch.float32)
)  # fmt: skip
WIDE_HEADS += (
    WIDE_HEADS[0].but(length=70, n_positions=80),
    WIDE_HEADS[0].but(n_head=4, length=290, n_positions=300),
)
"""Cases of heads as wide as in every released model, on more tokens than a tile of 16, of 64 or of
256 holds."""

LONG_ROWS = ModelCase(
    n_layer=2, n_head=2, d_head=4, length=290, n_positions=300, batch=2, vocab_size=11,
    initializer_range=0.2, seed=24,
)  # fmt: skip
"""A case of several rows of more than 256 tokens."""

LONG_AND_DEEP = ModelCase(
    n_layer=6, n_head=2, d_head=4, length=260, n_positions=262, batch=2, vocab_size=11,
    initializer_range=0.1, seed=25,
)  # fmt: skip
"""A case of six layers and more than 256 tokens."""

DEEPEST: tuple[ModelCase, ...] = (
    ModelCase(n_layer=48, length=3, initializer_range=0.05, embedding_range=4.0, seed=21),
    ModelCase(
        n_layer=48,
        d_head=64,
        length=3,
        initializer_range=0.02,
        embedding_range=4.0,
        seed=32,
    ),
)
"""Cases with the layers of the largest released model, each as narrow as can be, or of one head as
wide as its heads."""

WIDE_INSIDE = ModelCase(
    n_inner=6400, length=3, initializer_range=0.02, embedding_range=1.0, seed=33
)
"""A case of an MLP as wide as that of the largest released model."""

LONG_IN_FLOAT32: tuple[ModelCase, ...] = tuple(
    ModelCase(
        d_head=64, length=length, n_positions=length, vocab_size=11, initializer_range=0.02,
        dtype=torch.float32, seed=34,
    )
    for length in (100, 300)
)  # fmt: skip
"""Cases of one head as wide as in every released model on several tiles of tokens, in the type in
which models are run."""

RELEASED_TABLE = ModelCase(
    n_head=12, d_head=64, vocab_size=50_257, n_positions=4, length=3, initializer_range=0.02,
    embedding_range=1.0, dtype=torch.float32, seed=35,
)  # fmt: skip
"""A case of one layer with the token table of the smallest released model."""

WIDEST = ModelCase(n_head=25, d_head=64, n_inner=8, length=2, initializer_range=0.02, seed=20)
"""A case of 1 600 channels in 25 wide heads, as the largest released model.

In float32 its bound is too wide for a pass to be evidence.
"""

PADDED: tuple[ModelCase, ...] = tuple(
    case.but(padding=side, batch=3, n_positions=8, length=case.length + 1)
    for case in PINNED[2:6]
    for side in (Padding.LEFT, Padding.RIGHT)
)
PADDED += tuple(case.but(batch=9) for case in PADDED[:2])
PADDED += tuple(case.but(length=75, n_positions=80) for case in PADDED[:2])
PADDED += tuple(WIDE_HEADS[0].but(padding=side) for side in (Padding.LEFT, Padding.RIGHT))
PADDED += tuple(LONG_ROWS.but(padding=side) for side in (Padding.LEFT, Padding.RIGHT))
PADDED += tuple(case.but(padding=Padding.ENDS, batch=4) for case in PADDED[:4:2])
# more rows than a block of 32, with up to 78 tokens of padding, more than a tile of 64
PADDED += tuple(
    ModelCase(
        n_head=2, d_head=3, length=100, n_positions=102, batch=40, vocab_size=11, padding=side,
        seed=37,
    )
    for side in (Padding.LEFT, Padding.RIGHT)
)  # fmt: skip
"""Cases with padding, smallest first."""

ACTIVATIONS = ("gelu_new", "gelu", "relu", "silu", "tanh")
"""The values of `activation_function` that are drawn; an implementation may refuse some."""


def model_cases(
    subject: ModelImplementation, *, padded: bool = False, **fixed: Any
) -> st.SearchStrategy[ModelCase]:
    """Return a strategy of cases whose dtype and configuration a model claims.

    Args:
        subject: the model; cases have its dtypes.
        padded: whether rows are padded, on one side or the other.
        fixed: fields with the same value in every case.
    """
    dtypes = [dtype for dtype in (torch.float32, torch.float64) if dtype in subject.dtypes]
    if not dtypes:
        return st.nothing()

    def build(values: dict[str, Any]) -> ModelCase:
        spare = values.pop("spare")
        return ModelCase(**{"n_positions": values["length"] + spare} | values | fixed)

    paddings = (Padding.LEFT, Padding.RIGHT, Padding.ENDS) if padded else (Padding.NONE,)
    values = st.fixed_dictionaries(
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
            "padding": st.sampled_from(paddings),
            "dtype": st.sampled_from(dtypes),
            "initializer_range": st.sampled_from([0.1, 0.3, 0.5]),
            "seed": st.integers(0, 2**16),
        }
    )
    return values.map(build).filter(lambda case: subject.supports(case.config) is None)

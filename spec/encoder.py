"""The contract of a BERT: its configuration, the function that builds it, and its claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int

from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.padding import PaddedPositions


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The fields of Hugging Face's `BertConfig` that change a result, by the same names.

    Attributes:
        vocab_size: token ids.
        hidden_size: channels of a state.
        num_hidden_layers: blocks.
        num_attention_heads: heads of each block; they divide the channels.
        intermediate_size: channels inside the feed-forward network.
        hidden_act: the activation function, `gelu` (by erf), `gelu_new` or `relu`.
        max_position_embeddings: rows of the position table: the longest text.
        type_vocab_size: rows of the table of token types.
        layer_norm_eps: is added to the variance in each LayerNorm.
    """

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12


class Pooled(StrEnum):
    """The state from which a pooler makes the vector of a text."""

    FIRST_SLOT = "first_slot"
    """The state of the first slot, which may be padding: BERT in transformers."""
    FIRST_REAL_TOKEN = "first_real_token"
    """The state of the first real token: sentence-transformers."""


@dataclass(frozen=True, kw_only=True)
class BertProfile:
    """The behaviours in which correct BERTs differ, all of them with padding before a token.

    Attributes:
        positions: the position of a token.
        pooler: the state that a pooler reads.
    """

    positions: PaddedPositions = PaddedPositions.SLOTS
    pooler: Pooled = Pooled.FIRST_SLOT

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "positions": PaddedPositions,
        "pooler": Pooled,
    }
    """The type of the answer to each question."""


class Bert(Protocol):
    """A model that is built; options are passed only to one whose implementation declares them."""

    def __call__(
        self, input_ids: Int[torch.Tensor, "batch length"], **options: Any
    ) -> Float[torch.Tensor, "batch length vocab"] | tuple[Any, Any]:
        """Return the logits of the masked-LM head for each position.

        Args:
            input_ids: token ids.
            options: ``attention_mask`` (batch, length), 1 for real tokens and 0 for padding, at
                the end of a text, or anywhere with the feature `any_padding`;
                ``token_type_ids`` (batch, length), zeros if it is not given;
                ``output_hidden_states=True``, to return ``(logits, states)``, where states are the
                embeddings and the result of each block; ``output_pooled=True``, to return
                ``(logits, pooled)``.
        """


class BuildBert(Protocol):
    """The function that builds a BERT.

    The keys of the state dictionary are those of Hugging Face's `BertForMaskedLM`, with the pooler
    as ``bert.pooler.dense`` and without ``cls.predictions.decoder``, which is tied to the token
    table and ``cls.predictions.bias``. Matrices are stored like those of `torch.nn.Linear`; their
    dtype is the one to compute in.
    """

    def __call__(self, config: BertConfig, state_dict: Mapping[str, torch.Tensor]) -> Bert:
        """Return the model."""


@dataclass(frozen=True, kw_only=True)
class BertImplementation(OperatorImplementation):
    """A BERT and its claims, as data.

    The features are those of the model's options, `padding`, `token_types`, `hidden_states` and
    `pooler`; `any_padding`: padding may precede a text or lie inside of it; and `gradients`: the
    logits carry gradients to the tensors of the state dictionary, or to parameters of the model of
    the same names.

    Attributes:
        profile: its behaviour with padding before a token.
    """

    function: BuildBert | Callable[..., Any]
    profile: BertProfile = field(default_factory=BertProfile)
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)

    operator: ClassVar[str] = "bert"
    FEATURES: ClassVar[frozenset[str]] = frozenset(
        {"padding", "any_padding", "token_types", "hidden_states", "pooler", "gradients"}
    )

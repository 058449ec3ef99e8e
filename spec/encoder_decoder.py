"""The contract of an encoder-decoder: configuration, the function that builds it, and claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Float, Int

from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.padding import PaddedPositions


class Positions(StrEnum):
    """The positions that are added to the embeddings."""

    SINUSOIDAL = "sinusoidal"
    """Sines and cosines, as in the Transformer of 2017."""
    LEARNED = "learned"
    """Two rows of a table behind its position, and a LayerNorm of the sum, as in BART."""


class Sinusoids(StrEnum):
    """The order of the channels of sinusoidal positions."""

    INTERLEAVED = "interleaved"
    """Sine and cosine of a frequency are neighbours: the Transformer of 2017."""
    HALVES = "halves"
    """All sines, then all cosines: Marian in transformers."""


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderConfig:
    """The sizes of an encoder-decoder; fields that Hugging Face's `BartConfig` has bear its names.

    The defaults are those of the Transformer of 2017.

    Attributes:
        vocab_size: token ids.
        d_model: channels of a state; even with sinusoidal positions.
        encoder_layers: blocks of the encoder.
        decoder_layers: blocks of the decoder.
        encoder_attention_heads: heads of each attention of the encoder; they divide the channels.
        decoder_attention_heads: heads of each attention of the decoder; they divide the channels.
        encoder_ffn_dim: channels inside the feed-forward networks of the encoder.
        decoder_ffn_dim: channels inside the feed-forward networks of the decoder.
        activation_function: `relu`, `gelu` (by erf) or `gelu_new`.
        position_embedding: `sinusoidal` or `learned`.
        max_position_embeddings: the longest text with learned positions.
        scale_embedding: whether the rows of tokens are multiplied by the root of the channels.
        norm_first: whether each LayerNorm precedes its branch (pre-norm).
        final_norm: whether a LayerNorm follows the last block of encoder and decoder.
        layer_norm_eps: is added to the variance in each LayerNorm.
    """

    vocab_size: int = 37000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"
    position_embedding: Positions = Positions.SINUSOIDAL
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    norm_first: bool = False
    final_norm: bool = False
    layer_norm_eps: float = 1e-5


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderProfile:
    """The behaviour in which correct encoder-decoders differ.

    Attributes:
        sinusoids: the order of the channels of sinusoidal positions.
        positions: the position of a token behind padding.
    """

    sinusoids: Sinusoids = Sinusoids.INTERLEAVED
    positions: PaddedPositions = PaddedPositions.SLOTS

    QUESTIONS: ClassVar[Mapping[str, type[StrEnum]]] = {
        "sinusoids": Sinusoids,
        "positions": PaddedPositions,
    }
    """The type of the answer to each question."""


class EncoderDecoder(Protocol):
    """A model that is built; options are passed only to one whose implementation declares them.

    A model with the feature `steps` also has ``start(input_ids, attention_mask=None)``, which runs
    the encoder and returns a cache, and ``step(decoder_input_ids, cache)``, which returns the
    logits of the next target tokens, and the cache that holds them too.
    """

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch source"],
        decoder_input_ids: Int[torch.Tensor, "batch target"],
        **options: Any,
    ) -> Float[torch.Tensor, "batch target vocab"] | tuple[Any, ...]:
        """Return the logits of the token that follows each target token.

        Args:
            input_ids: token ids of the source.
            decoder_input_ids: token ids of the target, the start token first.
            options: ``attention_mask`` (batch, source) and ``decoder_attention_mask``
                (batch, target), 1 for real tokens and 0 for padding, at the end of a text, or
                anywhere with the features `any_padding` and `any_target_padding`;
                ``output_hidden_states=True``, to return ``(logits, encoder_states,
                decoder_states)``: of each side the embeddings, and the result of each block, the
                last of which has passed the final LayerNorm if there is one.
        """


class BuildEncoderDecoder(Protocol):
    """The function that builds an encoder-decoder.

    The keys of the state dictionary are those of Hugging Face's `BartForConditionalGeneration`,
    without the tables of positions if these are sinusoidal, and with
    ``model.encoder.layer_norm`` and ``model.decoder.layer_norm``, as in mBART, if there is a final
    LayerNorm. The head is tied to ``model.shared.weight``. Matrices are stored like those of
    `torch.nn.Linear`; their dtype is the one to compute in.
    """

    def __call__(
        self, config: EncoderDecoderConfig, state_dict: Mapping[str, torch.Tensor]
    ) -> EncoderDecoder:
        """Return the model."""


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderImplementation(OperatorImplementation):
    """An encoder-decoder and its claims, as data.

    The features are the configurations that it follows, `sinusoidal`, `learned`, `pre_norm` and
    `final_norm`; the options of the model, `padding`, `target_padding` and `hidden_states`;
    `any_padding` and `any_target_padding`: padding may precede a text or lie inside of it;
    `steps`; and `gradients`: the logits carry gradients to the tensors of the state dictionary, or
    to parameters of the model of the same names.

    Attributes:
        profile: the order of the channels of sinusoidal positions, and the positions of tokens
            behind padding.
    """

    function: BuildEncoderDecoder | Callable[..., Any]
    profile: EncoderDecoderProfile = field(default_factory=EncoderDecoderProfile)
    dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)

    operator: ClassVar[str] = "encoder_decoder"
    FEATURES: ClassVar[frozenset[str]] = frozenset(
        {
            *("sinusoidal", "learned", "pre_norm", "final_norm"),
            *("padding", "target_padding", "any_padding", "any_target_padding"),
            *("hidden_states", "steps", "gradients"),
        }
    )

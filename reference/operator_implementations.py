"""The reference's operators, with the claims they are judged by."""

import torch
from jaxtyping import Float

from attnspec.reference.activation import gelu_erf
from attnspec.reference.additive_attention import additive_attention
from attnspec.reference.encoder import build
from attnspec.reference.encoder_decoder import build as build_encoder_decoder
from attnspec.reference.experts import experts, router
from attnspec.reference.gated_mlp import gated_mlp
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.online_softmax import merge, tiled
from attnspec.reference.packed import packed_attention
from attnspec.reference.paged import paged_attention
from attnspec.reference.rms_norm import rms_norm
from attnspec.reference.rotary import rotary
from attnspec.spec.additive_attention import AdditiveAttentionImplementation
from attnspec.spec.encoder import BertImplementation
from attnspec.spec.encoder_decoder import EncoderDecoderImplementation
from attnspec.spec.experts import (
    ExpertsImplementation,
    RouterImplementation,
    RouterProfile,
    RouterTies,
)
from attnspec.spec.gated_mlp import GatedMLPImplementation
from attnspec.spec.gelu import GELUImplementation
from attnspec.spec.layer_norm import LayerNormImplementation
from attnspec.spec.online_softmax import (
    OnlineSoftmaxImplementation,
    SoftmaxMergeImplementation,
)
from attnspec.spec.packed import (
    PACKED_FEATURES,
    OutsideRows,
    PackedImplementation,
    PackedProfile,
)
from attnspec.spec.paged import PAGED_FEATURES, PagedImplementation, PagedProfile
from attnspec.spec.rms_norm import RMSNormImplementation
from attnspec.spec.rotary import RotaryImplementation

_DTYPES = (torch.float64, torch.float32)


def _rms_norm(
    input: Float[torch.Tensor, "*rows channels"],
    normalized_shape: tuple[int],
    weight: Float[torch.Tensor, " channels"],
    eps: float,
) -> Float[torch.Tensor, "*rows channels"]:
    """Call the reference by torch's signature."""
    return rms_norm(input, weight, epsilon=eps)


def _layer_norm(
    input: Float[torch.Tensor, "*rows channels"],
    normalized_shape: tuple[int],
    weight: Float[torch.Tensor, " channels"],
    bias: Float[torch.Tensor, " channels"],
    eps: float,
) -> Float[torch.Tensor, "*rows channels"]:
    """Call the reference by torch's signature."""
    return layer_norm(input, weight, bias, epsilon=eps)


LAYER_NORM = LayerNormImplementation(name="reference", function=_layer_norm, dtypes=_DTYPES)
GELU = GELUImplementation(name="reference", function=gelu_erf, dtypes=_DTYPES)
RMS_NORM = RMSNormImplementation(name="reference", function=_rms_norm, dtypes=_DTYPES)
ROTARY = RotaryImplementation(
    name="reference", function=rotary, features=RotaryImplementation.FEATURES, dtypes=_DTYPES
)
GATED_MLP = GatedMLPImplementation(
    name="reference", function=gated_mlp, features=frozenset({"bias"}), dtypes=_DTYPES
)
ROUTER = RouterImplementation(
    name="reference",
    function=router,
    features=frozenset({"bias"}),
    dtypes=_DTYPES,
    profile=RouterProfile(ties=RouterTies.LOWEST),
)
EXPERTS = ExpertsImplementation(
    name="reference",
    function=experts,
    features=frozenset({"bias", "shared"}),
    dtypes=_DTYPES,
)
ONLINE_SOFTMAX = OnlineSoftmaxImplementation(name="reference", function=tiled, dtypes=_DTYPES)
SOFTMAX_MERGE = SoftmaxMergeImplementation(
    name="reference", function=merge, dtypes=_DTYPES, has_gradients=False
)
ADDITIVE_ATTENTION = AdditiveAttentionImplementation(
    name="reference",
    function=additive_attention,
    features=AdditiveAttentionImplementation.FEATURES,
    dtypes=_DTYPES,
)
BERT = BertImplementation(
    name="reference", function=build, features=BertImplementation.FEATURES, dtypes=_DTYPES
)
ENCODER_DECODER = EncoderDecoderImplementation(
    name="reference",
    function=build_encoder_decoder,
    features=EncoderDecoderImplementation.FEATURES,
)
PACKED = PackedImplementation(
    name="reference",
    function=packed_attention,
    features=PACKED_FEATURES,
    profile=PackedProfile(outside_rows=OutsideRows.ZERO, batch_invariant=True),
)
PAGED = PagedImplementation(
    name="reference",
    function=paged_attention,
    features=PAGED_FEATURES,
    profile=PagedProfile(outside_rows=OutsideRows.ZERO, batch_invariant=True),
)

"""The reference's operators, with the claims they are judged by."""

import torch
from jaxtyping import Float

from attnspec.reference.additive_attention import additive_attention
from attnspec.reference.encoder import build
from attnspec.reference.experts import experts, router
from attnspec.reference.gated_mlp import gated_mlp
from attnspec.reference.online_softmax import merge, tiled
from attnspec.reference.rms_norm import rms_norm
from attnspec.reference.rotary import rotary
from attnspec.spec.additive_attention import AdditiveAttentionImplementation
from attnspec.spec.encoder import BertImplementation
from attnspec.spec.experts import (
    ExpertsImplementation,
    RouterImplementation,
    RouterProfile,
    RouterTies,
)
from attnspec.spec.gated_mlp import GatedMLPImplementation
from attnspec.spec.online_softmax import (
    OnlineSoftmaxImplementation,
    SoftmaxMergeImplementation,
)
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

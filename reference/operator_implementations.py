"""The reference's gated MLP, router and experts, with the claims they are judged by."""

import torch

from attnspec.reference.experts import experts, router
from attnspec.reference.gated_mlp import gated_mlp
from attnspec.spec.experts import (
    ExpertsImplementation,
    RouterImplementation,
    RouterProfile,
    RouterTies,
)
from attnspec.spec.gated_mlp import GatedMLPImplementation

_DTYPES = (torch.float64, torch.float32)

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

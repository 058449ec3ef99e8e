"""transformers' router of Mixtral, which computes scores in float32 whatever its type."""

from attnspec.implementations.transformers_experts import mixtral_router, unavailable
from attnspec.spec.experts import RouterImplementation, RouterProfile, RouterScores
from attnspec.spec.profiles import Float64Precision

IMPLEMENTATION = RouterImplementation(
    name="mixtral_router",
    function=mixtral_router,
    profile=RouterProfile(
        scores=RouterScores.SOFTMAX_ALL,
        renormalized=True,
        scores_precision=Float64Precision.FLOAT32,
    ),
    unavailable=unavailable,
)

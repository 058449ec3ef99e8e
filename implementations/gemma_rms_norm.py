"""transformers' RMSNorm of Gemma, which computes in float32 whatever the type of its operands."""

from attnspec.implementations.transformers_experts import unavailable
from attnspec.implementations.transformers_norms import rms_norm_of
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import Gain, RMSNormImplementation, RMSNormProfile

IMPLEMENTATION = RMSNormImplementation(
    name="gemma_rms_norm",
    function=rms_norm_of("gemma", "GemmaRMSNorm", "eps"),
    unavailable=unavailable,
    profile=RMSNormProfile(gain=Gain.ONE_PLUS, float64_precision=Float64Precision.FLOAT32),
)

"""transformers' RMSNorm of Llama, which computes in float32 whatever the type of its operands."""

from attnspec.implementations.transformers_experts import unavailable
from attnspec.implementations.transformers_norms import rms_norm_of
from attnspec.spec.profiles import Float64Precision
from attnspec.spec.rms_norm import RMSNormImplementation, RMSNormProfile, RoundingToStorage

IMPLEMENTATION = RMSNormImplementation(
    name="llama_rms_norm",
    function=rms_norm_of("llama", "LlamaRMSNorm", "variance_epsilon"),
    unavailable=unavailable,
    profile=RMSNormProfile(
        rounding=RoundingToStorage.BEFORE_GAIN, float64_precision=Float64Precision.FLOAT32
    ),
)

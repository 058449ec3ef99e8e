"""Liger's RMSNorm, cast as in Llama: rounded before the gain."""

from attnspec.implementations.cuda import on_cuda
from attnspec.implementations.liger import DTYPES, rms_norm, unavailable
from attnspec.spec.rms_norm import RMSNormImplementation, RMSNormProfile, RoundingToStorage

IMPLEMENTATION = RMSNormImplementation(
    name="liger_rms_norm",
    function=on_cuda(rms_norm),
    dtypes=DTYPES,
    unavailable=unavailable,
    profile=RMSNormProfile(rounding=RoundingToStorage.BEFORE_GAIN),
)

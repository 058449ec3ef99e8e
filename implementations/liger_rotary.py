"""Liger's rotary positions, on cosine and sine of float32."""

from attnspec.implementations.cuda import on_cuda
from attnspec.implementations.liger import DTYPES, rotary, unavailable
from attnspec.spec.rotary import AnglePrecision, RotaryImplementation, RotaryProfile

IMPLEMENTATION = RotaryImplementation(
    name="liger_rotary",
    function=on_cuda(rotary),
    features=frozenset({"base"}),
    dtypes=DTYPES,
    unavailable=unavailable,
    profile=RotaryProfile(angles=AnglePrecision.FLOAT32),
)

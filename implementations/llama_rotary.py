"""transformers' rotary positions of Llama, with every scaling."""

from attnspec.implementations.transformers_rotary import module_rotary, unavailable
from attnspec.spec.operator import Working
from attnspec.spec.rotary import (
    AnglePrecision,
    RotaryImplementation,
    RotaryProfile,
    ScalingKind,
)

IMPLEMENTATION = RotaryImplementation(
    name="llama_rotary",
    function=module_rotary("llama", "Llama"),
    features=frozenset({"base", *ScalingKind}),
    profile=RotaryProfile(angles=AnglePrecision.FLOAT32, working=Working.STORAGE),
    unavailable=unavailable,
)

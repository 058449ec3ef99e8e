"""transformers' rotary positions of GPT-NeoX, which turn a part of each head."""

from attnspec.implementations.transformers_rotary import module_rotary, unavailable
from attnspec.spec.operator import Working
from attnspec.spec.rotary import AnglePrecision, RotaryImplementation, RotaryProfile

IMPLEMENTATION = RotaryImplementation(
    name="gpt_neox_rotary",
    function=module_rotary("gpt_neox", "GPTNeoX"),
    features=RotaryImplementation.FEATURES,
    profile=RotaryProfile(angles=AnglePrecision.FLOAT32, working=Working.STORAGE),
    unavailable=unavailable,
)

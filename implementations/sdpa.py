"""torch's `scaled_dot_product_attention`, with the kernel that torch chooses.

On a CPU torch chooses the flash kernel if it accepts the arguments, else the math kernel.
"""

from typing import cast

import torch

from attnspec.implementations.cpu_kernels import DEVIATIONS, PROFILE, flash_refuses
from attnspec.spec import Attention, Case, Extra, Feature, Implementation


def supports(case: Case) -> str | None:
    """Return the reason why neither CPU kernel takes a case, or None."""
    if case.mask is not None and case.is_causal:
        refused = flash_refuses(case)
        return f"{refused}, the math kernel no mask together with is_causal" if refused else None
    return None


IMPLEMENTATION = Implementation(
    name="sdpa",
    attention=cast(Attention, torch.nn.functional.scaled_dot_product_attention),
    features=frozenset(
        {Feature.MASK, Feature.CAUSAL, Feature.GQA, Feature.DROPOUT, Feature.BACKWARD}
    ),
    dtypes=(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    extras=frozenset({Extra.COMPILE, Extra.VMAP}),
    supports=supports,
    profile=PROFILE,
    deviations=DEVIATIONS,
)

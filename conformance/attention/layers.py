"""Calls with gradients, in the place of a layer of a model if their mode says so."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from attnspec.conformance.attention.call import Call
from attnspec.spec import CallMode

Result = TypeVar("Result")


def make_on_leaves(
    make: Callable[[Call], Result], call: Call, leaves: Mapping[str, torch.Tensor]
) -> Result:
    """Make a call on operands that require gradients, and return its result.

    In `CallMode.LAYERS` the operands are views of the leaves, and the next layer is called before
    a backward pass, with gradients and without.

    Args:
        make: makes a call.
        call: the call.
        leaves: by the names of the operands that they replace.
    """
    is_layer = call.mode is CallMode.LAYERS
    call = call.but(**{name: leaf[:] if is_layer else leaf for name, leaf in leaves.items()})
    result = make(call)
    if is_layer and leaves:
        # the next layer, of other numbers, which is not differentiated
        following = call.but(query=-call.query)
        make(following)
        with torch.no_grad():
            # a model that is not trained, on the same operands
            make(following)
    return result

"""The arithmetic of an operator whose storage type may be narrower than its working precision."""

from dataclasses import dataclass

import torch

from attnspec.conformance.models.bounds.enclosure import Arithmetic, Enclosure, enclose, matmul
from attnspec.conformance.models.bounds.forward import linear as linear_with_bias

_STORED = {
    torch.bfloat16: (2.0**-8, 2.0**-126),
    torch.float16: (2.0**-11, 2.0**-25),
}
"""Unit roundoff of a storage type, and the absolute error of a result that underflows there. On the
processors of the tests bfloat16 may be flushed to zero, float16 is not."""


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The roundings of a conforming operator.

    Attributes:
        arithmetic: of sums, products and elementary functions.
        storage: unit roundoff of the storage type if it is narrower, else 0.
        floor: absolute error of a stored result that underflows, else 0.
    """

    arithmetic: Arithmetic
    storage: float = 0.0
    floor: float = 0.0

    @classmethod
    def of(cls, dtype: torch.dtype) -> "Precision":
        """Return the precision of a storage type; one of 16 bits is computed with in float32.

        Raises:
            ValueError: if the dtype is not float64, float32, bfloat16 or float16.
        """
        if dtype in _STORED:
            storage, floor = _STORED[dtype]
            return cls(arithmetic=Arithmetic.of(torch.float32), storage=storage, floor=floor)
        return cls(arithmetic=Arithmetic.of(dtype))

    def stored(self, x: Enclosure, count: int = 1) -> Enclosure:
        """Enclose a result that is rounded to the storage type up to `count` times in a row."""
        if not self.storage:
            return x
        gamma = count * self.storage / (1 - count * self.storage)
        fresh = gamma * x.magnitude + count * self.floor
        return enclose(x.value, x.radius, x.slack, fresh)

    def added(self, x: Enclosure, error: torch.Tensor) -> Enclosure:
        """Widen an enclosure by an error of the storage type, in units of its roundoff."""
        if not self.storage:
            return x
        return enclose(x.value, x.radius, x.slack, self.storage * error + self.floor)


def linear(
    x: Enclosure, weight: torch.Tensor, bias: torch.Tensor | None, precision: Precision
) -> Enclosure:
    """Enclose Wx + b, stored.

    A matrix product may start from the bias, which is then one more term of each sum, or be stored
    before the bias is added, and then rounds at its own size.
    """
    product = matmul(x, Enclosure.exact(weight.mT), precision.arithmetic)
    if bias is None:
        return precision.stored(product)
    result = linear_with_bias(x, weight.mT, bias, precision.arithmetic)
    return precision.stored(precision.added(result, product.magnitude))

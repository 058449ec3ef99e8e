"""Units of rounding of an operator: of its storage type, and of the type that it computes in."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Roundoff:
    r"""The roundings of an operator on operands of one storage type.

    Attributes:
        storage: unit roundoff *u* of the storage type, rounding to nearest.
        working: unit roundoff *w* of the type in which sums are accumulated: float64 for float64,
            else float32.
        step: unit roundoff of each step on the way: *w*, or *u* if every step is stored.
        tiny: largest error of a stored number that underflows.
        floor: largest error of a number on the way that underflows.
        largest: the largest number on the way.
    """

    storage: float
    working: float
    step: float
    tiny: float
    floor: float
    largest: float

    @classmethod
    def of(cls, dtype: torch.dtype, *, stores_steps: bool = False) -> "Roundoff":
        """Return the roundings of a storage type.

        Args:
            dtype: the storage type.
            stores_steps: whether every step is rounded to it.
        """
        wide_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        wide, narrow = torch.finfo(wide_dtype), torch.finfo(dtype)
        way_dtype = dtype if stores_steps else wide_dtype
        way = torch.finfo(way_dtype)
        return cls(
            storage=narrow.eps / 2,
            working=wide.eps / 2,
            step=way.eps / 2,
            tiny=_underflow(dtype),
            floor=_underflow(way_dtype),
            largest=float(way.max),
        )

    def gamma(self, count: int) -> float:
        """Return γ of `count` additions: the largest relative error of a sum of their terms.

        Source:
            Higham 2002, equation 3.2
        """
        total = count * self.working
        return total / (1 - total) if total < 1 else float("inf")


def _underflow(dtype: torch.dtype) -> float:
    """Return the largest error of a number that underflows in a storage type.

    Numbers below the smallest normal one may be flushed to zero; in float16 they are not.
    """
    return 2.0**-25 if dtype == torch.float16 else float(torch.finfo(dtype).smallest_normal)

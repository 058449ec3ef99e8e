"""A known bug of torch's matrix products, told apart from a mistake of the subject.

On CPUs with AMX, a product in bfloat16 lets a row of NaN or infinity make another row NaN. An
attention that multiplies in bfloat16 then breaks laws that it keeps elsewhere. `MendedProducts`
restores the rows that torch spoils, and nothing else: a row into which a subject itself lets a NaN
leak is NaN in the right product as well.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnspec.conformance.diagnosis.trial import try_case
from attnspec.conformance.laws.law import Law

LINK = "docs/findings.md#the-row-before-a-row-of-nan"
"""The description of the bug."""

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv"})
"""The operators that multiply matrices; `matmul`, `einsum` and others call these."""


class MendedProducts(TorchDispatchMode):
    """A context in which no product in bfloat16 is NaN where the right product is not.

    Attributes:
        spoiled: the shapes of the operands of the products that had to be mended, in words.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.spoiled: dict[str, None] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operator, and mend the product that torch spoils."""
        with self:  # in inference mode an operator that calls others comes here whole
            result = func.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ not in PRODUCTS or not _is_suspect(result):
            return result
        options = {name: _wide(value) for name, value in (kwargs or {}).items() if name != "out"}
        right = func.overloadpacket.default(*map(_wide, args), **options)
        is_spoiled = result.isnan() & ~right.isnan()
        if not bool(is_spoiled.any()):
            return result
        shapes = [str(tuple(each.shape)) for each in args if isinstance(each, torch.Tensor)]
        self.spoiled[" by ".join(shapes[-2:])] = None
        return result.copy_(torch.where(is_spoiled, right.to(result.dtype), result))


def spoiled_products(law: Law, subject: Any, case: Any) -> tuple[str, ...]:
    """Return the products of torch that alone make a law fail on a case.

    Args:
        law: the broken law.
        subject: the subject that breaks it.
        case: the failing case.

    Returns:
        Their operands in words; an empty tuple if torch spoils none, or if the law fails with
        these rows restored as well.
    """
    if getattr(case, "dtype", None) != torch.bfloat16:
        return ()
    with MendedProducts() as products:
        trial = try_case(law, subject, case)
    return tuple(products.spoiled) if trial.holds else ()


def spoiled_sentence(products: Sequence[str]) -> str:
    """Return the sentence of a failure message."""
    return (
        f"torch    this case holds once the mistake of torch's product {products[0]} is undone: on "
        f"this CPU a NaN of one row spoils another row of a bfloat16 product ({LINK})"
    )


def _is_suspect(result: Any) -> bool:
    """Return whether a result is a tensor of bfloat16 with a NaN in it."""
    if not isinstance(result, torch.Tensor) or result.dtype != torch.bfloat16:
        return False
    return bool(result.isnan().any())


def _wide(value: Any) -> Any:
    """Return a tensor of bfloat16 in float64, and anything else as it is."""
    is_narrow = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
    return value.double() if is_narrow else value

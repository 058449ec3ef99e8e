"""Mutants of TEN, fourth part: extras declared that are not there."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.registry import plant
from attnspec.spec import Extra

COMPILED = "a-compiled-call-gives-the-same"
MAPPED = "a-mapped-call-gives-the-same"
REGISTERED = "operators-of-its-own-are-registered-in-full"

correct: Callable[..., Any] = Dense()


def _plant(id: str, title: str, attention: Any, extra: Extra, kills: str, source: str = "") -> None:
    base = dense(f"mutant_{id.lower().replace('-', '_')}", attention)
    subject = replace(base, extras=frozenset({extra}))
    plant(id=id, title=title, subject=subject, kills=(kills,), source=source)


class _Branching(Dense):
    """Look at a number, which no graph can hold."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        scores = super().scores(query, key, scale)
        return scores if float(scores.detach().sum()) < 1e30 else scores.clamp(max=1e30)


class _FirstSizes(Dense):
    """Take the number of keys of the first call that is compiled for that of all."""

    keys = 0

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            self.keys = self.keys or int(scores.shape[-1])
            visible = visible & (torch.arange(scores.shape[-1]) < self.keys)
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)


class _FewerDigits(Dense):
    """Compute in bfloat16 where compiled, as a pattern that is replaced by another kernel."""

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        rounded = out.to(torch.bfloat16) if torch.compiler.is_compiling() else out
        return super().finish(rounded, value)


class _AnyPermutation(Dense):
    """Take keys that are stored channel by channel for a product that is already transposed."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *rest: Any,
        **options: Any,
    ) -> Any:
        if torch.compiler.is_compiling() and key.stride(-2) < key.stride(-1):
            key = key.mT.reshape(key.shape)
        return super().__call__(query, key, value, *rest, **options)


_plant(
    "CMP-02",
    "a pattern of compiled code takes any permutation of the keys for a transposition",
    _AnyPermutation(),
    Extra.COMPILE,
    COMPILED,
    source="https://github.com/pytorch/pytorch/issues/195320",
)
_plant(
    "own-graph-breaks", "a number is looked at on the way", _Branching(), Extra.COMPILE, COMPILED
)
_plant(
    "own-sizes-captured",
    "the number of keys of the first call is captured with the graph",
    _FirstSizes(),
    Extra.COMPILE,
    COMPILED,
)
_plant(
    "own-compiled-in-bfloat16",
    "compiled code keeps fewer digits",
    _FewerDigits(),
    Extra.COMPILE,
    COMPILED,
)


def _first_of_all(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
    """Let every mapped query read the first one's keys."""
    functorch = torch._C._functorch

    def first(tensor: torch.Tensor) -> torch.Tensor:
        if not functorch.is_batchedtensor(tensor):
            return tensor
        return functorch.get_unwrapped(tensor).select(functorch.maybe_get_bdim(tensor), 0)

    return correct(query, *map(first, operands), **options)


_plant(
    "own-first-keys-for-all",
    "every mapped call reads the keys of the first",
    _first_of_all,
    Extra.VMAP,
    MAPPED,
)
_plant("own-numbers-while-mapped", "a number is looked at", _Branching(), Extra.VMAP, MAPPED)


def _operator(
    name: str, kernel: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor] | None
) -> Callable[..., Any]:
    """A correct attention whose output goes through an operator of its own.

    Args:
        name: of the operator.
        kernel: what it does with the output.
        fake: what it says of the shape that comes; `None` registers nothing.
    """

    def finish(out: torch.Tensor) -> torch.Tensor:
        return kernel(out)

    registered = torch.library.custom_op(f"attnspec_mutants::{name}", finish, mutates_args=())
    if fake is not None:
        registered.register_fake(fake)

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        out: torch.Tensor = registered(correct(*operands, **options))
        return out

    return attention


def _mapped_in_front() -> Callable[..., Any]:
    """An attention by an operator whose rule for `vmap` takes any mapped axis for the first."""

    def store(query: torch.Tensor) -> torch.Tensor:
        return query.clone(memory_format=torch.contiguous_format)

    registered = torch.library.custom_op("attnspec_mutants::store", store, mutates_args=())
    registered.register_fake(store)

    def rule(info: Any, in_dims: Any, query: torch.Tensor) -> tuple[torch.Tensor, int]:
        stored: torch.Tensor = registered(query)
        return stored, 0

    registered.register_vmap(rule)

    def attention(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
        return correct(registered(query), *operands, **options)

    return attention


_plant(
    "own-mapped-axis-assumed",
    "the rule of an operator for vmap takes the mapped axis for the first",
    _mapped_in_front(),
    Extra.VMAP,
    MAPPED,
)


def _viewing() -> Callable[..., Any]:
    """A correct attention by an operator that returns its argument, and says it is a new tensor."""
    name = "attnspec_mutants::view"
    torch.library.define(name, "(Tensor out) -> Tensor")
    torch.library.impl(name, "default", lambda out: out.view_as(out))
    torch.library.register_fake(name, torch.empty_like)

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        return torch.ops.attnspec_mutants.view(correct(*operands, **options))

    return attention


def _in_place(out: torch.Tensor) -> torch.Tensor:
    kept = out.clone()
    out.zero_()
    return kept


_plant(
    "own-operator-without-shapes",
    "an operator tells nobody the shape of its result",
    _operator("without_shapes", torch.clone, None),
    Extra.OPCHECK,
    REGISTERED,
)
_plant(
    "own-operator-of-other-shapes",
    "an operator announces another shape than it returns",
    _operator("other_shapes", torch.clone, lambda out: out.new_empty(out.shape[::-1])),
    Extra.OPCHECK,
    REGISTERED,
)
_plant(
    "own-operator-writes",
    "an operator that is said to write nothing overwrites what it is given",
    _operator("writes", _in_place, torch.empty_like),
    Extra.OPCHECK,
    REGISTERED,
)
_plant(
    "own-operator-returns-a-view",
    "an operator that is said to return new memory returns a view of its argument",
    _viewing(),
    Extra.OPCHECK,
    REGISTERED,
)
_plant(
    "own-no-operator",
    "no operator is called though one is registered",
    Dense(),
    Extra.OPCHECK,
    REGISTERED,
)

"""Mutants of TEN: extras that are declared and missing."""

from collections.abc import Callable
from typing import Any

import torch

from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.conformance.mutants.planting import mistake, plant_dense
from attnspec.spec import Extra

correct: Callable[..., Any] = Dense()


@mistake(
    "CMP-02",
    "a pattern of compiled code takes any permutation of the keys for a transposition",
    killed_by="a-compiled-call-equals-a-plain-call",
    source="https://github.com/pytorch/pytorch/issues/195320",
    extras={Extra.COMPILE},
)
class AnyPermutation(Dense):
    """Compiled code that treats keys stored with channels before tokens as transposed keys."""

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


class BranchesOnANumber(Dense):
    """An attention that branches on the value of a tensor, which no graph can contain."""

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        scores = super().scores(query, key, scale)
        return scores if float(scores.detach().sum()) < 1e30 else scores.clamp(max=1e30)


plant_dense(
    "own-graph-breaks",
    "a number is looked at on the way",
    BranchesOnANumber(),
    killed_by="a-compiled-call-equals-a-plain-call",
    extras={Extra.COMPILE},
)


@mistake(
    "own-sizes-captured",
    "the number of keys of the first call is captured with the graph",
    killed_by="a-compiled-call-equals-a-plain-call",
    extras={Extra.COMPILE},
)
class SizesCaptured(Dense):
    """Compiled code that uses the number of keys of the first compiled call for all calls."""

    keys = 0

    def hide(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            self.keys = self.keys or int(scores.shape[-1])
            visible = visible & (torch.arange(scores.shape[-1]) < self.keys)
        return super().hide(scores, visible)

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        return super().softmax(scores, scores != -torch.inf)


@mistake(
    "own-compiled-in-bfloat16",
    "compiled code keeps fewer digits",
    killed_by="a-compiled-call-equals-a-plain-call",
    extras={Extra.COMPILE},
)
class CompiledInBfloat16(Dense):
    """Compiled code that rounds to bfloat16, like a pattern replaced by another kernel."""

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        rounded = out.to(torch.bfloat16) if torch.compiler.is_compiling() else out
        return super().finish(rounded, value)


@mistake(
    "own-first-keys-for-all",
    "every mapped call reads the keys of the first",
    killed_by="vmap-equals-separate-calls",
    extras={Extra.VMAP},
)
def _first_keys(query: torch.Tensor, *operands: torch.Tensor, **options: Any) -> Any:
    """Let every mapped query read the first one's keys."""
    functorch = torch._C._functorch

    def first(tensor: torch.Tensor) -> torch.Tensor:
        if not functorch.is_batchedtensor(tensor):
            return tensor
        return functorch.get_unwrapped(tensor).select(functorch.maybe_get_bdim(tensor), 0)

    return correct(query, *map(first, operands), **options)


plant_dense(
    "own-numbers-while-mapped",
    "a number is looked at",
    BranchesOnANumber(),
    killed_by="vmap-equals-separate-calls",
    extras={Extra.VMAP},
)


def _first_axis_assumed() -> Callable[..., Any]:
    """Return an attention by an operator whose `vmap` rule takes any mapped axis for the first."""

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


plant_dense(
    "own-mapped-axis-assumed",
    "the rule of an operator for vmap takes the mapped axis for the first",
    _first_axis_assumed(),
    killed_by="vmap-equals-separate-calls",
    extras={Extra.VMAP},
)


def _operator(
    name: str, kernel: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor] | None
) -> Callable[..., Any]:
    """Return an attention whose output passes through an operator.

    Args:
        name: of the operator.
        kernel: of the operator, applied to the output.
        fake: of the operator, i.e. its rule for shapes; `None` registers none.
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


plant_dense(
    "own-operator-without-shapes",
    "an operator registers no shape of its result",
    _operator("without_shapes", torch.clone, None),
    killed_by="custom-operators-pass-opcheck",
    extras={Extra.OPCHECK},
)
plant_dense(
    "own-operator-of-other-shapes",
    "an operator announces another shape than it returns",
    _operator("other_shapes", torch.clone, lambda out: out.new_empty(out.shape[::-1])),
    killed_by="custom-operators-pass-opcheck",
    extras={Extra.OPCHECK},
)


def _overwrite(out: torch.Tensor) -> torch.Tensor:
    kept = out.clone()
    out.zero_()
    return kept


plant_dense(
    "own-operator-writes",
    "an operator that is said to write nothing overwrites what it is given",
    _operator("writes", _overwrite, torch.empty_like),
    killed_by="custom-operators-pass-opcheck",
    extras={Extra.OPCHECK},
)


def _returning_a_view() -> Callable[..., Any]:
    """Return an attention by an operator that declares a new tensor and returns a view."""
    name = "attnspec_mutants::view"
    torch.library.define(name, "(Tensor out) -> Tensor")
    torch.library.impl(name, "default", lambda out: out.view_as(out))
    torch.library.register_fake(name, torch.empty_like)

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        return torch.ops.attnspec_mutants.view(correct(*operands, **options))

    return attention


plant_dense(
    "own-operator-returns-a-view",
    "an operator that is said to return new memory returns a view of its argument",
    _returning_a_view(),
    killed_by="custom-operators-pass-opcheck",
    extras={Extra.OPCHECK},
)
plant_dense(
    "own-no-operator",
    "no operator is called though one is registered",
    Dense(),
    killed_by="custom-operators-pass-opcheck",
    extras={Extra.OPCHECK},
)

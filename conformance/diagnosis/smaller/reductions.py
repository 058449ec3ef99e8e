"""Reductions: the changes that make a case simpler, one field or a few that go together at a time.

A reduction yields changes of a case, the simplest first, and nothing if the field is simplest.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from attnspec.conformance.models.case import ModelCase
from attnspec.spec import Case, Layout, Layouts

Changes = dict[str, Any]
Reduction = Callable[[Any], Iterator[Changes]]


def reductions_of(case: Any) -> tuple[Reduction, ...]:
    """Return the reductions of a case: sizes first, since small cases take less time.

    Args:
        case: of any kind; one that is neither of an attention nor of a model has none.
    """
    if isinstance(case, Case):
        return _ATTENTION
    return _MODEL if isinstance(case, ModelCase) else ()


def smaller_sizes(size: int, least: int = 1) -> list[int]:
    """Return sizes below a given one, ascending, and none below the least."""
    return sorted({each for each in (1, 2, 3, size // 2, size - 1) if least <= each < size})


def _size(*names: str, least: int = 1) -> Reduction:
    """Return the reduction of sizes that are equal, and change together."""

    def reduce(case: Any) -> Iterator[Changes]:
        sizes = {getattr(case, name) for name in names}
        for smaller in smaller_sizes(max(sizes), least) if len(sizes) == 1 else ():
            yield dict.fromkeys(names, smaller)

    return reduce


def _simplest(**simplest: Any) -> Reduction:
    """Return the reduction that gives fields their simplest values, all at once."""

    def reduce(case: Any) -> Iterator[Changes]:
        changes = {name: value for name, value in simplest.items() if getattr(case, name) != value}
        if changes:
            yield changes

    return reduce


def _dtype(case: Case) -> Iterator[Changes]:
    """Use float32 in place of 16 bits, whose bound hides small mistakes at other sizes."""
    if case.dtype.itemsize == 2:
        yield {"dtype": torch.float32}


def _groups(case: Case) -> Iterator[Changes]:
    """Make key/value heads fewer, and then the query heads that share each of them."""
    group = case.heads // case.kv_heads
    for kv_heads in smaller_sizes(case.kv_heads):
        yield {"heads": group * kv_heads, "kv_heads": kv_heads}
    for smaller in smaller_sizes(group):
        yield {"heads": smaller * case.kv_heads}


def _layouts(case: Case) -> Iterator[Changes]:
    """Make all tensors contiguous, or one of them."""
    if case.layouts == Layouts():
        return
    yield {"layouts": Layouts()}
    for each in fields(Layouts):
        if getattr(case.layouts, each.name) is not Layout.CONTIGUOUS:
            changes: Changes = {each.name: Layout.CONTIGUOUS}
            yield {"layouts": replace(case.layouts, **changes)}


def _steps(case: Any) -> Iterator[Changes]:
    """Leave out a step of a session with a cache."""
    steps = getattr(case, "steps", ())
    for place in reversed(range(len(steps))):
        yield {"steps": steps[:place] + steps[place + 1 :]}


def _length(case: ModelCase) -> Iterator[Changes]:
    """Make sequences shorter, and the table of positions as long as they are."""
    for length in smaller_sizes(case.length):
        yield {"length": length, "n_positions": length}
    if case.n_positions > case.length:
        yield {"n_positions": case.length}


_DEFAULT = Case()
_OPTIONS = (
    *("is_causal", "scale", "window", "softcap", "sinks", "alibi", "return_lse", "dropout_p"),
    *("key_lengths", "query_offset", "mode", "values"),
)
_ATTENTION: tuple[Reduction, ...] = (
    _dtype,
    _steps,
    _size("queries"),
    _size("keys"),
    _size("d_head", "d_value"),
    _size("d_head"),
    _size("d_value"),
    _size("batch"),
    _groups,
    _simplest(mask=None, mask_gradient=False),
    _simplest(backward=False, mask_gradient=False),
    *(_simplest(**{name: getattr(_DEFAULT, name)}) for name in _OPTIONS),
    _layouts,
)

_MODEL_DEFAULT = ModelCase()
_MODEL: tuple[Reduction, ...] = (
    _size("n_layer"),
    _length,
    _size("batch"),
    _size("n_head"),
    _size("d_head", least=2),  # LayerNorm turns a single channel into its bias
    _size("vocab_size", least=2),
    *(
        _simplest(**{name: getattr(_MODEL_DEFAULT, name)})
        for name in (
            *("padding", "n_inner", "activation_function", "layer_norm_epsilon"),
            *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tied"),
        )
    ),
)

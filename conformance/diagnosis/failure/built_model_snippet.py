"""Snippets of models of other architectures: parameters, ids and call, as code to paste."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import torch

from attnspec.conformance.attention.import_code import import_code_of
from attnspec.conformance.comparison.violation import Mismatch
from attnspec.conformance.diagnosis.failure.snippet import SMALL, comment_on
from attnspec.conformance.diagnosis.failure.tensor_code import literal
from attnspec.conformance.operators.built_model import BuiltModelSubject, ModelRun


def built_model_snippet(subject: BuiltModelSubject, mismatch: Mismatch | None) -> str:
    """Return code that builds a model again and repeats its last call.

    Args:
        subject: the subject; its `import_code` defines the name of the operator, and is found by
            the function if it is empty.
        mismatch: the worst element, for the result that is printed and the comment at the end.

    Returns:
        The code; an empty string without a call, or if the parameters that a law has changed are
        too large to write out.
    """
    run, operator = subject.last_model, subject.implementation.operator
    if run is None:
        return ""
    changed = _changed(run)
    if sum(each.numel() for each in changed.values()) > SMALL:
        return ""
    case = type(run.case)
    imported = subject.import_code or import_code_of(subject.implementation.function, operator)
    default = "gradients" if run.differentiated else "out"
    place = run.places.get(mismatch.what, default) if mismatch else default
    return "\n".join(
        [
            "import torch",
            "from torch import inf, nan",
            f"from {case.__module__} import {case.__name__}",
            imported,
            "",
            f"case = {_code(run.case)}",
            "weights = case.draw_parameters()",
            *(f"weights[{name!r}] = {literal(each)}" for name, each in changed.items()),
            *(_backward(run, operator) if run.differentiated else _forward(run, operator)),
            f"print({place}){comment_on(mismatch, 'logits')}",
        ]
    )


def _changed(run: ModelRun) -> dict[str, torch.Tensor]:
    """Return the parameters that a law has changed."""
    drawn = run.case.draw_parameters()
    return {
        name: each.detach()
        for name, each in run.weights.items()
        if not torch.equal(each.detach(), drawn[name])
    }


def _code(case: Any) -> str:
    """Return the code of a case, without the fields that have their default."""
    values = {each.name: (getattr(case, each.name), each.default) for each in fields(case)}
    given = (f"{name}={value!r}" for name, (value, default) in values.items() if value != default)
    return f"{type(case).__name__}({', '.join(given)})"


def _forward(run: ModelRun, operator: str) -> Iterator[str]:
    """Yield the lines that build a model and leave the result of its calls in `out`."""
    yield f"model = {operator}(case.config, weights)"
    yield "with torch.no_grad():"
    yield from (f"    {line}" for line in _calls(run))


def _backward(run: ModelRun, operator: str) -> Iterator[str]:
    """Yield the lines that leave the gradient of each parameter in `gradients`."""
    yield "leaves = {name: each.requires_grad_() for name, each in weights.items()}"
    yield f"model = {operator}(case.config, leaves)"
    yield from _calls(run)
    yield "out.backward(case.draw_cotangent())"
    yield 'own = dict(getattr(model, "named_parameters", dict)())'
    yield "gradients = {name: each.grad for name, each in (own | leaves).items()}"


def _calls(run: ModelRun) -> Iterator[str]:
    """Yield the lines that leave the result in `out`."""
    arguments = [
        f"{name}={literal(value) if isinstance(value, torch.Tensor) else repr(value)}"
        for name, value in run.arguments.items()
    ]
    if run.chunks is None:
        yield f"out = model({', '.join(arguments)})"
        return
    yield f"cache, rows = model.start({', '.join(arguments)}), []"
    yield f"for part in ({''.join(f'{literal(part)}, ' for part in run.chunks).strip()}):"
    yield "    logits, cache = model.step(part, cache)"
    yield "    rows.append(logits)"
    yield "out = torch.cat(rows, dim=1)"

"""The kinds of operators: the declaration and the subject of each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from attnspec.conformance.operators.experts.router import RouterSubject
from attnspec.conformance.operators.experts.subject import ExpertsSubject
from attnspec.conformance.operators.gated_mlp.subject import GatedMLPSubject
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec.experts import ExpertsImplementation, RouterImplementation
from attnspec.spec.gated_mlp import GatedMLPImplementation

DECLARATIONS: Mapping[str, type] = MappingProxyType(
    {
        each.operator: each
        for each in (GatedMLPImplementation, RouterImplementation, ExpertsImplementation)
    }
)
"""The type of the declaration of each operator, by its name."""

_SUBJECTS: Mapping[str, type[OperatorSubject]] = MappingProxyType(
    {"gated_mlp": GatedMLPSubject, "router": RouterSubject, "experts": ExpertsSubject}
)


def is_operator(value: Any) -> bool:
    """Return whether a value is the declaration of an operator."""
    return isinstance(value, tuple(DECLARATIONS.values()))


def subject_of_operator(implementation: Any, import_code: str = "") -> OperatorSubject:
    """Return the subject that the laws of an operator judge."""
    return _SUBJECTS[implementation.operator](
        implementation=implementation, import_code=import_code
    )

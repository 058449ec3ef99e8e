"""Targets: from a name on the command line to loaded subjects."""

import importlib
import importlib.util
import sys
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from attnspec.conformance.attention.oracle import expect_scalar
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.select import suggestion_for
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare import (
    NO_CLAIMS,
    BrokenCall,
    BrokenTarget,
    TargetError,
    declare,
)
from attnspec.conformance.runner.declare_model import BuildError, declare_model, is_build
from attnspec.conformance.runner.declare_operator import declare_operator
from attnspec.conformance.runner.first_call import failed_import
from attnspec.conformance.runner.hub import HubError, HubKernel, is_hub_target
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import (
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    TokenizerImplementation,
)
from attnspec.spec.operator import OperatorImplementation

ENTRY_POINTS = "attnspec.implementations"
"""The entry-point group in which other packages register implementations."""


@dataclass(frozen=True, kw_only=True)
class LoadedSubject:
    """A subject in this process, with the kind of laws that judge it.

    Attributes:
        kind: the kind of laws.
        subject: a `Subject` for laws of attention, else the record of the implementation.
        is_function: whether it is a function without a declaration: an attention, or one that
            builds a GPT-2.
    """

    kind: SubjectKind
    subject: Any
    is_function: bool = False

    @property
    def name(self) -> str:
        """The subject's name."""
        return str(self.subject.name)

    @property
    def group(self) -> str:
        """Loaded subjects share this process."""
        return ""

    @property
    def deviations(self) -> tuple[str, ...]:
        """The law of each known deviation that the implementation declares, in their order."""
        declared = getattr(self.subject, "implementation", None)
        return tuple(each.law for each in getattr(declared, "deviations", ()))


def every_name() -> tuple[str, ...]:
    """List the names of the registered subjects that a run includes, the reference first."""
    from attnspec import implementations

    names = ["reference", *implementations.names(), *implementations.model_names()]
    names += [*implementations.tokenizer_names(), *implementations.sampler_names()]
    names += implementations.operators_of_a_run()
    names += [each.name for each in entry_points(group=ENTRY_POINTS)]
    return tuple(dict.fromkeys(names))


def named_targets() -> tuple[str, ...]:
    """List every name that `resolve` takes, also of libraries that a run does not include."""
    from attnspec import implementations

    further = (*implementations.attention_names(), *implementations.operator_names())
    return tuple(dict.fromkeys((*every_name(), *further)))


def resolve(
    target: str,
    *,
    claims: Claims = NO_CLAIMS,
    device: str = "cpu",
    allow_foreign_code: bool = False,
) -> list[LoadedSubject]:
    """Import a target, and return its subjects.

    A callable that needs two arguments, a configuration and weights, builds a GPT-2; any other is
    an attention function.

    Args:
        target: a registered name, `module:attribute`, `path/to/file.py:attribute`, or
            `hub:owner/name@revision:function`.
        claims: the user's claims, which override the target's declaration.
        device: the device on which cases are drawn.
        allow_foreign_code: whether a kernel of the hub may be fetched and run.

    Returns:
        One subject, or several for a registered name that has several kinds.

    Raises:
        TargetError: naming the target and its fault.
    """
    if ":" not in target:
        return _overridden(target, _registered(target, device), claims)
    value, imports, code = _value(target, allow_foreign_code=allow_foreign_code)
    if isinstance(value, OperatorImplementation) or claims.operator is not None:
        return [_operator(target, value, claims, imports, code)]
    if isinstance(value, ModelImplementation) or (callable(value) and is_build(value)):
        return [_model(target, value, claims)]
    if isinstance(value, TokenizerImplementation):
        return [LoadedSubject(kind=SubjectKind.TOKENIZER, subject=value)]
    if isinstance(value, SamplerImplementation):
        return [LoadedSubject(kind=SubjectKind.SAMPLER, subject=value)]
    import_code = f"{imports}; attention = {code}"
    try:
        if isinstance(value, Implementation):
            subject = _subject(claims.override(value), device, f"{import_code}.attention")
        elif callable(value):
            subject = _subject(declare(target, value, claims, device), device, import_code)
            subject.is_bare = claims.features is None
        else:
            raise TargetError(f"{target}: neither a callable nor an Implementation, but {value!r}")
        subject.sizes = claims.sizes
    except ValueError as error:
        raise TargetError(f"{target}: {error}") from None
    is_function = not isinstance(value, Implementation)
    return [LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject, is_function=is_function)]


def _operator(target: str, value: Any, claims: Claims, imports: str, code: str) -> LoadedSubject:
    """Make the subject of an operator that is declared, or a bare function."""
    is_declared = isinstance(value, OperatorImplementation)
    try:
        if not is_declared:
            if not callable(value):
                raise TargetError(f"{target}: not callable, but {value!r}")
            value = declare_operator(target, value, claims)
        else:
            value = claims.override_operator(value)
    except ValueError as error:
        raise TargetError(f"{target}: {error}") from None
    function = f"{code}.function" if is_declared else code
    subject = subject_of_operator(value, f"{imports}; {value.operator} = {function}")
    return LoadedSubject(kind=SubjectKind(value.operator), subject=subject)


def _model(target: str, value: Any, claims: Claims) -> LoadedSubject:
    """Make the subject of a GPT-2 that is declared, or built by a bare function."""
    is_function = not isinstance(value, ModelImplementation)
    try:
        model = declare_model(target, value) if is_function else value
        subject = claims.override_model(model)
        return LoadedSubject(kind=SubjectKind.MODEL, subject=subject, is_function=is_function)
    except BuildError as error:
        raise BrokenCall(str(error)) from None
    except ValueError as error:
        raise TargetError(f"{target}: {error}") from None


def demand_device(device: str) -> None:
    """Refuse a device that does not exist, or not on this machine.

    Raises:
        TargetError: naming the device.
    """
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise TargetError(f"no device {device!r}; give cpu, cuda or cuda:1") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise TargetError(f"{device}: there is no CUDA device here")


def _overridden(target: str, subjects: list[LoadedSubject], claims: Claims) -> list[LoadedSubject]:
    """Return the subjects of a registered name with the user's claims in place of their own.

    Of a name with subjects of several kinds, those that `claims.operator` means; without it,
    claims are meant for the attention alone.
    """
    if claims == NO_CLAIMS:
        return subjects
    if claims.operator is not None:
        kinds = [str(each.kind) for each in subjects]
        subjects = [each for each in subjects if each.kind == claims.operator]
        if not subjects:
            raise TargetError(f"{target}: declared as {', '.join(kinds)}, not {claims.operator}")
    is_single = len(subjects) == 1
    changed = []
    for loaded in subjects:
        subject = loaded.subject
        try:
            if isinstance(subject, Subject):
                declared = claims.override(subject.implementation)
                loaded = replace(
                    loaded,
                    subject=replace(subject, implementation=declared, sizes=claims.sizes),
                )
            elif isinstance(subject, OperatorSubject) and is_single:
                operator = claims.override_operator(subject.implementation)
                loaded = replace(loaded, subject=replace(subject, implementation=operator))
        except ValueError as error:
            raise TargetError(f"{target}: {error}") from None
        changed.append(loaded)
    return changed


def _registered(name: str, device: str) -> list[LoadedSubject]:
    from attnspec import implementations

    subjects: list[LoadedSubject] = []
    if name == "reference":
        subjects += _reference(device)
    if name in implementations.attention_names():
        subject = _subject(implementations.load(name), device, "")
        subjects.append(LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject))
    for kind, names, load in (
        (SubjectKind.MODEL, implementations.model_names, implementations.load_model),
        (SubjectKind.TOKENIZER, implementations.tokenizer_names, implementations.load_tokenizer),
        (SubjectKind.SAMPLER, implementations.sampler_names, implementations.load_sampler),
    ):
        if name in names():
            subjects.append(LoadedSubject(kind=kind, subject=load(name)))
    if name in implementations.operator_names():
        declared = implementations.load_operator(name)
        code = (
            "from attnspec.implementations import load_operator; "
            f"{declared.operator} = load_operator({name!r}).function"
        )
        subject_of_name = subject_of_operator(declared, code)
        kind = SubjectKind(subject_of_name.implementation.operator)
        subjects.append(LoadedSubject(kind=kind, subject=subject_of_name))
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        subjects += resolve(entry.value, device=device)
    if not subjects:
        if name.endswith(".py"):
            raise TargetError(f"{name}: which function of it? Give {name}:attribute")
        raise TargetError(
            f"{name}: no implementation of this name{suggestion_for(name, named_targets())}; "
            f"give module:attribute, file.py:attribute, or one of {', '.join(named_targets())}"
        )
    return subjects


def _reference(device: str) -> list[LoadedSubject]:
    from attnspec.reference.implementation import REFERENCE
    from attnspec.reference.model import MODEL
    from attnspec.reference.operator_implementations import (
        ADDITIVE_ATTENTION,
        BERT,
        ENCODER_DECODER,
        EXPERTS,
        GATED_MLP,
        GELU,
        LAYER_NORM,
        ONLINE_SOFTMAX,
        PACKED,
        PAGED,
        RMS_NORM,
        ROTARY,
        ROUTER,
        SOFTMAX_MERGE,
    )
    from attnspec.reference.text_implementations import SAMPLER, TOKENIZER

    # Scalar loops judge the reference, which cannot judge itself: only as far as they are fast.
    import_code = "from attnspec.reference import scaled_dot_product_attention as attention"
    subject = Subject(
        REFERENCE, oracle=expect_scalar, largest=400_000, device=device, import_code=import_code
    )
    return [
        LoadedSubject(kind=SubjectKind.ATTENTION, subject=subject),
        LoadedSubject(kind=SubjectKind.MODEL, subject=MODEL),
        LoadedSubject(kind=SubjectKind.TOKENIZER, subject=TOKENIZER),
        LoadedSubject(kind=SubjectKind.SAMPLER, subject=SAMPLER),
        *(
            LoadedSubject(kind=SubjectKind(each.operator), subject=subject_of_operator(each))
            for each in (
                *(LAYER_NORM, GELU, RMS_NORM, ROTARY, GATED_MLP, ROUTER, EXPERTS),
                *(ONLINE_SOFTMAX, SOFTMAX_MERGE, ADDITIVE_ATTENTION),
                *(BERT, ENCODER_DECODER, PACKED, PAGED),
            )
        ),
    ]


def _subject(implementation: Implementation, device: str, import_code: str) -> Subject:
    only = implementation.devices
    # an implementation for one kind of device runs there, whichever device the user chose
    chosen = device if torch.device(device).type in only or len(only) > 1 else only[0]
    return Subject(implementation, device=chosen, import_code=import_code)


def _value(target: str, *, allow_foreign_code: bool) -> tuple[Any, str, str]:
    """Import what a target names, and return it with its imports and its expression as code."""
    if is_hub_target(target):
        kernel = _hub_kernel(target)
        module, module_name = _hub_module(kernel, allow_foreign_code), kernel.repository
        attribute, imports = kernel.function, "from kernels import get_kernel"
        code = kernel.expression
    else:
        module_name, _, attribute = target.rpartition(":")
        module, imports = _module(module_name, target)
        code = f"{module.__name__}.{attribute}"
    try:
        return getattr(module, attribute), imports, code
    except AttributeError:
        near = suggestion_for(attribute, vars(module))
        message = f"{target}: {module_name} has no attribute {attribute!r}{near}"
        raise TargetError(message) from None


def _hub_kernel(target: str) -> HubKernel:
    try:
        return HubKernel.of(target)
    except HubError as error:
        raise TargetError(str(error)) from None


def _hub_module(kernel: HubKernel, allow_foreign_code: bool) -> Any:
    """Import a kernel of the hub."""
    try:
        return kernel.load_module(allow_foreign_code=allow_foreign_code)
    except HubError as error:
        raise TargetError(str(error)) from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        cause = f"{type(error).__name__}: {error}"
        raise BrokenTarget(failed_import(str(kernel), cause)) from error


def _module(name: str, target: str) -> tuple[ModuleType, str]:
    """Import a module by name or by path, and return it with the code that imports it."""
    try:
        if not name.endswith(".py"):
            _search_first(Path.cwd())
            return importlib.import_module(name), f"import {name}"
        path = Path(name).resolve()
        if not path.is_file():
            raise TargetError(f"{target}: there is no file {name}")
        _search_first(path.parent)
        return importlib.import_module(path.stem), f"import {path.stem}"
    except TargetError:
        raise
    except ModuleNotFoundError as error:
        hint = _how_to_install(error.name, name)
        raise TargetError(f"{target}: cannot import it: {error}{hint}") from error
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        cause = f"{type(error).__name__}: {error}"
        raise BrokenTarget(failed_import(target, cause)) from error


def _how_to_install(missing: str | None, module: str) -> str:
    """Return what to do about a module that a target imports and that is not installed."""
    if missing is None or missing == module.partition(".")[0]:
        return ""
    return f"\n  To do   install {missing} for {sys.executable}, or run attnspec with its Python"


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

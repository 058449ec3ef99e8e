"""The rig of the probe: a callable of which nothing is known, called safely and read.

What it answers is compared with *readings*: what each convention would make of the same call, as
another call that the oracle understands, each within the error bound of that call. A convention is
found where its reading is the only one that agrees.
"""

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.claims import DTYPES
from attnspec.conformance.compare import check_close
from attnspec.conformance.inputs import draw
from attnspec.conformance.oracle import expect
from attnspec.conformance.process import restored
from attnspec.conformance.subject import sound, sound_lse
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Profile, Rounding, RoundingLevel

LOOSEST = Profile(rounding=Rounding(level=RoundingLevel.EAGER))
"""How exactly an answer must be right before its rounding is known."""

SIZES = ((16, 1), (64, 1), (16, 16), (64, 64), (128, 128))
"""Channels, and the number that lengths are multiples of: kernels have their blocks."""

FOREIGN = {
    "attn_mask": ("mask", "attention_mask", "attn_bias", "bias", "key_padding_mask"),
    "is_causal": ("causal",),
    "scale": ("softmax_scale", "sm_scale", "scaling"),
    "window": ("window_size", "sliding_window", "local_window_size"),
    "softcap": ("soft_cap", "logit_cap", "logits_soft_cap", "softcapping"),
    "sinks": ("sink", "s_aux", "attention_sinks", "learnable_sink"),
    "alibi_slopes": ("slopes", "alibi"),
    "return_lse": ("return_softmax_lse", "return_attn_probs", "with_lse"),
    "dropout_p": ("dropout", "p_dropout"),
}
"""What other libraries call the parameters of the contract."""

SCALES: dict[str, Callable[[Call], float]] = {
    "1/√d_head": lambda call: call.query.shape[3] ** -0.5,
    "1/√d_value": lambda call: call.value.shape[3] ** -0.5,
    "1/√(heads · d_head)": lambda call: (call.query.shape[1] * call.query.shape[3]) ** -0.5,
    "1/d_head": lambda call: 1 / call.query.shape[3],
    "1": lambda call: 1.0,
    "√d_head": lambda call: call.query.shape[3] ** 0.5,
    "ln 2/√d_head": lambda call: 0.6931471805599453 * call.query.shape[3] ** -0.5,
}
"""Default scales that are seen, the contract's first; the last is that of weights 2ˢ."""


class Unready(Exception):
    """No plain call gives a tensor of the right shape; the message says what came of it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came of a call: a sound output, or the problem in words."""

    call: Call
    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    problem: str = ""
    is_refusal: bool = False

    @property
    def told(self) -> str:
        """The call and its problem in a line."""
        return f"{in_words(self.call)}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A convention: the call and the profile under which the oracle answers as it would."""

    name: str
    call: Call
    profile: Profile = LOOSEST


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Which readings agree with an answer.

    Attributes:
        names: those that agree, in their order.
        told: the call and what was found, in a line.
        problem: why there is nothing to compare, or empty.
        is_refusal: true where it raised.
    """

    names: tuple[str, ...]
    told: str
    problem: str = ""
    is_refusal: bool = False


@dataclass
class Rig:
    """A callable under probe.

    Attributes:
        attention: the callable.
        dtypes: the storage types to try, widest first.
        device: where tensors are made.
    """

    attention: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = tuple(DTYPES.values())
    device: str = "cpu"
    unready: str = field(default="", init=False)

    def ask(self, call: Call, **options: Any) -> Answer:
        """Call it with copies of the arguments, whatever it does.

        Args:
            call: what it is asked.
            options: keywords beside those of the call.
        """
        given = copy.deepcopy(call)
        try:
            with restored():
                warnings.simplefilter("ignore")
                found = self.attention(
                    given.query, given.key, given.value, **given.keywords() | options
                )
                if not call.return_lse:
                    return Answer(call=call, out=sound(found, call))
                if not (isinstance(found, tuple) and len(found) == 2):
                    problem = f"returns {kind(found)} and no pair (out, lse)"
                    return Answer(call=call, problem=problem)
                out, lse = sound(found[0], call), sound_lse(found[1], call)
                return Answer(call=call, out=out, lse=lse)
        except Violation as error:
            return Answer(call=call, problem=str(error))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # it may even try to leave
            return Answer(call=call, problem=raised(error), is_refusal=True)

    def lacks(self, parameter: str) -> str:
        """That it has no such parameter, in words; empty where it may have."""
        try:
            parameters = inspect.signature(self.attention).parameters
        except (TypeError, ValueError):
            return ""
        if parameter in parameters or any(
            each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()
        ):
            return ""
        other = [each for each in FOREIGN.get(parameter, ()) if each in parameters]
        hint = f", but {other[0]}: an adapter can pass it on" if other else ""
        return f"it has no parameter {parameter}{hint}"

    @functools.cached_property
    def base(self) -> Case:
        """The smallest plain case that it answers, in the widest type that it takes.

        Raises:
            Unready: where it answers none.
        """
        if self.unready:
            raise Unready(self.unready)
        problems: list[str] = []
        for dtype in self.dtypes:
            for channels, unit in SIZES:
                case = Case(batch=2, heads=2, kv_heads=2, dtype=dtype, device=self.device).but(
                    queries=6 * unit, keys=6 * unit, d_head=channels, d_value=channels
                )
                answer = self.ask(draw(case))
                if answer.out is not None:
                    return case
                problems.append(answer.told)
                if not answer.is_refusal:
                    break  # what comes back is of a wrong kind, whatever the size
        self.unready = problems[0]
        raise Unready(self.unready)

    @property
    def unit(self) -> int:
        """What lengths are multiples of."""
        return self.base.queries // 6

    @functools.cached_property
    def scales(self) -> Verdict:
        """Which default scales agree with what it answers without one."""
        wide = self.base.but(seed=1, d_value=4 * self.base.d_head)
        call = draw(wide)
        if self.ask(call).out is None:
            call = draw(self.base.but(seed=1))
        readings = [
            Reading(name=name, call=call.but(scale=scale(call))) for name, scale in SCALES.items()
        ]
        return self.read(call, readings)

    @functools.cached_property
    def explicit(self) -> bool:
        """True where its default scale is not the contract's, but it can be given that."""
        if not self.scales.names or next(iter(SCALES)) in self.scales.names:
            return False
        call = draw(self.base.but(scale=self.base.d_head**-0.5))
        return bool(self.read(call, [Reading(name="right", call=call)]).names)

    def case(self, **changes: Any) -> Case:
        """The plain case with some fields changed, and the scale said where that is needed."""
        case = self.base.but(**changes)
        if self.explicit and case.scale is None:
            case = case.but(scale=max(case.d_head, 1) ** -0.5)
        return case

    def draw(self, **changes: Any) -> Call:
        """The call of such a case."""
        return draw(self.case(**changes))

    def meant(self, call: Call) -> Call:
        """The call with its scale as a number: a default scale of its own must not spoil more."""
        if call.scale is not None:
            return call
        name = self.scales.names[0] if self.scales.names else next(iter(SCALES))
        # without channels every score is zero, whatever the scale
        return call.but(scale=SCALES[name](call) if call.query.shape[3] else 1.0)

    def read(
        self, call: Call, readings: Sequence[Reading], *, without: torch.Tensor | None = None
    ) -> Verdict:
        """Ask, and name the readings that agree.

        Args:
            call: what it is asked.
            readings: what the conventions would make of it.
            without: the keys whose readers are not compared.
        """
        return compare(self.ask(call), readings, without=without)


def compare(
    answer: Answer, readings: Sequence[Reading], *, without: torch.Tensor | None = None
) -> Verdict:
    """Name the readings that agree with an answer, rows that read nothing apart."""
    if answer.out is None:
        return Verdict(
            names=(), told=answer.told, problem=answer.problem, is_refusal=answer.is_refusal
        )
    words = [(each.name, *distance(answer.out, each, without=without)) for each in readings]
    names = tuple(name for name, is_near, _ in words if is_near)
    if names:
        near = [f"{name} ({told})" for name, is_near, told in words if is_near]
        found = near[0] if names[0] == "right" else "; ".join(near)
    else:
        found = f"no known reading; not {words[0][0]} ({words[0][2]})"
    return Verdict(names=names, told=f"{in_words(answer.call)}: {found}")


def distance(
    out: torch.Tensor,
    reading: Reading,
    *,
    without: torch.Tensor | None = None,
    with_empty: bool = False,
) -> tuple[bool, str]:
    """Whether an output is what a reading would give, and how near, in words."""
    if not out.numel():
        return True, "nothing to compare"
    expected = expect(reading.call, reading.profile)
    exact, bound = expected.out, expected.bound
    ignored = torch.zeros_like(expected.lse, dtype=torch.bool)
    if not with_empty and expected.visible is not None:
        ignored = ~expected.visible.any(-1)
    if without is not None and expected.visible is not None:
        ignored = ignored | expected.visible[..., without].any(-1)
    if bool(ignored.all()) or bool((bound.isinf() & ~ignored[..., None]).any()):
        return False, "nothing is promised"
    exact = exact.masked_fill(ignored[..., None], 0.0)
    bound = bound.masked_fill(ignored[..., None], torch.inf)
    try:
        used = check_close(
            out, exact, bound, what="out", message="", may_be_nan=expected.may_be_nan
        )
    except Violation as error:
        wrong = error.mismatch
        if wrong is None:
            return False, str(error)
        return False, f"expected {wrong.expected}, got {wrong.got}, at {wrong.where}"
    return True, f"{used:.2g} of the error bound"


def readings(call: Call, **conventions: Call) -> list[Reading]:
    """The contract's reading of a call, and others; underscores of their names become spaces."""
    others = [Reading(name=name.replace("_", " "), call=each) for name, each in conventions.items()]
    return [Reading(name="right", call=call), *others]


def with_profile(name: str, call: Call, **answers: Any) -> Reading:
    """A reading that differs in its profile."""
    return Reading(name=name, call=call, profile=replace(LOOSEST, **answers))


def in_words(call: Call) -> str:
    """A call in a line, without its numbers."""
    shapes: dict[str, list[str]] = {}
    for name in ("query", "key", "value"):
        size = "×".join(map(str, getattr(call, name).shape))
        shapes.setdefault(size, []).append(name)
    told = [f"{' = '.join(names)} {size}" for size, names in shapes.items()]
    for name, value in call.keywords().items():
        if not isinstance(value, torch.Tensor):
            told.append(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}")
            continue
        size = "×".join(map(str, value.shape))
        told.append(f"{name} {type_in_words(value.dtype)} {size}")
    return f"{', '.join(told)}, {type_in_words(call.query.dtype)}"


def type_in_words(dtype: torch.dtype) -> str:
    """A storage type without the name of the library."""
    return str(dtype).removeprefix("torch.")


def kind(found: Any) -> str:
    """What something is, in words."""
    if isinstance(found, tuple):
        return f"a tuple of {len(found)}"
    return type(found).__name__


def raised(error: BaseException) -> str:
    """An exception in a line."""
    lines = str(error).strip().splitlines()
    first = lines[0].strip() if lines else ""
    first = first if len(first) <= 160 else f"{first[:157]}..."
    return f"raises {type(error).__name__}" + (f": {first}" if first else "")

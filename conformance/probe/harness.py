"""The harness of the probe: calls an unknown attention safely and identifies its conventions.

A result is compared with *readings*. A reading states how one convention interprets the call: it is
another call, whose exact result and error bound the oracle computes. A convention is identified if
its reading is the only one that agrees.
"""

import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import expect
from attnspec.conformance.attention.subject import checked_lse, checked_output
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.runner.claims import DTYPES
from attnspec.conformance.runner.first_call import announce_call
from attnspec.spec import Case, Profile, Rounding, RoundingLevel

LOOSEST = Profile(rounding=Rounding(level=RoundingLevel.EAGER))
"""The profile with the widest error bound, used before the rounding is known."""

SIZES = ((16, 1), (64, 1), (16, 16), (64, 64), (128, 128))
"""Pairs of channels and length unit to try: some kernels accept only multiples of a block."""

ALIASES = {
    "attn_mask": ("mask", "attention_mask", "attn_bias", "bias", "key_padding_mask"),
    "is_causal": ("causal",),
    "scale": ("softmax_scale", "sm_scale", "scaling"),
    "window": ("window_size", "sliding_window", "local_window_size"),
    "softcap": ("soft_cap", "logit_cap", "logits_soft_cap", "softcapping"),
    "sinks": ("sink", "s_aux", "attention_sinks", "learnable_sink"),
    "alibi_slopes": ("slopes", "alibi"),
    "key_lengths": ("seqused_k", "cache_seqlens", "seqlens_k", "kv_lens", "nonpad_kv_seqlen"),
    "query_offset": ("q_offset", "start_pos", "cache_position", "past_length"),
    "return_lse": ("return_softmax_lse", "return_attn_probs", "with_lse"),
    "dropout_p": ("dropout", "p_dropout"),
}
"""Names that other libraries give to the parameters of the contract."""

SCALES: dict[str, Callable[[Call], float]] = {
    "1/√d_head": lambda call: call.query.shape[3] ** -0.5,
    "1/√d_value": lambda call: call.value.shape[3] ** -0.5,
    "1/√(heads · d_head)": lambda call: (call.query.shape[1] * call.query.shape[3]) ** -0.5,
    "1/d_head": lambda call: 1 / call.query.shape[3],
    "1": lambda call: 1.0,
    "√d_head": lambda call: call.query.shape[3] ** 0.5,
    "ln 2/√d_head": lambda call: 0.6931471805599453 * call.query.shape[3] ** -0.5,
}
"""Default scales in use, the contract's first; the last belongs to attention weights 2ˢ."""


class NoOutput(Exception):
    """Raised if no plain call returns a tensor of the right shape; the message says why."""


@dataclass(frozen=True, kw_only=True)
class CallResult:
    """The result of a call: a valid output, or the problem in words.

    Attributes:
        call: the call.
        out: the output, if it is valid.
        lse: the log-sum-exp, if it was requested and is valid.
        problem: the reason why there is no valid output, or empty.
        is_refusal: true if the call raised an exception.
    """

    call: Call
    out: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    problem: str = ""
    is_refusal: bool = False

    @property
    def message(self) -> str:
        """The call and its problem, in a line."""
        return f"{describe(self.call)}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A convention: the call and profile for which the oracle returns its result."""

    name: str
    call: Call
    profile: Profile = LOOSEST


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The readings that agree with a result.

    Attributes:
        names: the readings that agree, in their order.
        message: the call and the outcome of the comparison, in a line.
        problem: the reason why there is no result to compare, or empty.
        is_refusal: true if the call raised an exception.
    """

    names: tuple[str, ...]
    message: str
    problem: str = ""
    is_refusal: bool = False


@dataclass
class Harness:
    """An attention function under probe.

    Attributes:
        attention: the function.
        dtypes: the storage types to try, widest first.
        device: the device of all tensors.
        base_problem: the reason why no plain call works, once known.
    """

    attention: Callable[..., Any]
    dtypes: tuple[torch.dtype, ...] = tuple(DTYPES.values())
    device: str = "cpu"
    base_problem: str = field(default="", init=False)

    def run(self, call: Call, **options: Any) -> CallResult:
        """Call the attention with copies of the arguments and catch every exception.

        Args:
            call: the arguments.
            options: further keyword arguments.
        """
        copied = copy.deepcopy(call)
        try:
            announce_call(lambda: describe(call))
            with restored_state():
                warnings.simplefilter("ignore")
                result = self.attention(
                    copied.query, copied.key, copied.value, **copied.keywords() | options
                )
                if not call.return_lse:
                    return CallResult(call=call, out=checked_output(result, call))
                if not (isinstance(result, tuple) and len(result) == 2):
                    problem = f"returns {type_name(result)} and no pair (out, lse)"
                    return CallResult(call=call, problem=problem)
                out, lse = checked_output(result[0], call), checked_lse(result[1], call)
                return CallResult(call=call, out=out, lse=lse)
        except Violation as error:
            return CallResult(call=call, problem=str(error))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit included
            return CallResult(call=call, problem=describe_exception(error), is_refusal=True)

    def missing_parameter(self, parameter: str) -> str:
        """Return a sentence if the attention lacks the parameter, or an empty string."""
        try:
            parameters = inspect.signature(self.attention).parameters
        except (TypeError, ValueError):
            return ""
        if parameter in parameters or any(
            declared.kind is inspect.Parameter.VAR_KEYWORD for declared in parameters.values()
        ):
            return ""
        aliases = [alias for alias in ALIASES.get(parameter, ()) if alias in parameters]
        hint = f", but {aliases[0]}: an adapter can pass it on" if aliases else ""
        return f"it has no parameter {parameter}{hint}"

    @functools.cached_property
    def base_case(self) -> Case:
        """The smallest plain case that works, in the widest type that is right, or else works.

        Raises:
            NoOutput: if none works.
        """
        if self.base_problem:
            raise NoOutput(self.base_problem)
        problems: list[str] = []
        working: list[Case] = []
        for dtype in self.dtypes:
            for channels, unit in SIZES:
                case = Case(batch=2, heads=2, kv_heads=2, dtype=dtype, device=self.device).but(
                    queries=6 * unit, keys=6 * unit, d_head=channels, d_value=channels
                )
                result = self.run(draw(case))
                if result.out is not None:
                    if compare(result, scale_readings(result.call)).names:
                        return case
                    working.append(case)
                    break
                problems.append(result.message)
                if not result.is_refusal:
                    break  # another size would not change an invalid result
        if working:
            return working[0]
        self.base_problem = problems[0]
        raise NoOutput(self.base_problem)

    @property
    def unit(self) -> int:
        """The number of which all lengths are multiples."""
        return self.base_case.queries // 6

    @functools.cached_property
    def scales(self) -> Verdict:
        """The default scales that agree with a call without a scale."""
        wide = self.base_case.but(seed=1, d_value=4 * self.base_case.d_head)
        call = draw(wide)
        if self.run(call).out is None:
            call = draw(self.base_case.but(seed=1))
        return self.compare(call, scale_readings(call))

    @functools.cached_property
    def needs_scale(self) -> bool:
        """True if the default scale is not the contract's, but the contract's can be passed."""
        if not self.scales.names or next(iter(SCALES)) in self.scales.names:
            return False
        call = draw(self.base_case.but(scale=self.base_case.d_head**-0.5))
        return bool(self.compare(call, [Reading(name="right", call=call)]).names)

    def case(self, **changes: Any) -> Case:
        """Return the plain case with some fields changed, and an explicit scale if needed."""
        case = self.base_case.but(**changes)
        if self.needs_scale and case.scale is None:
            case = case.but(scale=max(case.d_head, 1) ** -0.5)
        return case

    def draw(self, **changes: Any) -> Call:
        """Draw the call of `case(**changes)`."""
        return draw(self.case(**changes))

    def oracle_call(self, call: Call) -> Call:
        """Return the call for the oracle, with the target's default scale made explicit.

        A nonstandard default scale then does not affect other experiments.
        """
        if call.scale is not None:
            return call
        name = self.scales.names[0] if self.scales.names else next(iter(SCALES))
        # without channels every score is zero, whatever the scale
        return call.but(scale=SCALES[name](call) if call.query.shape[3] else 1.0)

    def compare(
        self, call: Call, readings: Sequence[Reading], *, without: torch.Tensor | None = None
    ) -> Verdict:
        """Run a call and name the readings that agree.

        Args:
            call: the call.
            readings: the interpretations of the call.
            without: keys; rows that may read one of them are not compared.
        """
        return compare(self.run(call), readings, without=without)


def compare(
    result: CallResult, readings: Sequence[Reading], *, without: torch.Tensor | None = None
) -> Verdict:
    """Name the readings that agree with a result, ignoring empty rows."""
    if result.out is None:
        return Verdict(
            names=(), message=result.message, problem=result.problem, is_refusal=result.is_refusal
        )
    comparisons = [
        (reading.name, *distance(result.out, reading, without=without)) for reading in readings
    ]
    names = tuple(name for name, is_near, _ in comparisons if is_near)
    if names:
        matches = [f"{name} ({details})" for name, is_near, details in comparisons if is_near]
        summary = matches[0] if names[0] == "right" else "; ".join(matches)
    else:
        summary = f"no known reading; not {comparisons[0][0]} ({comparisons[0][2]})"
    return Verdict(names=names, message=f"{describe(result.call)}: {summary}")


def distance(
    out: torch.Tensor,
    reading: Reading,
    *,
    without: torch.Tensor | None = None,
    with_empty: bool = False,
) -> tuple[bool, str]:
    """Return whether an output agrees with a reading, and how closely, in words."""
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
        return False, "no finite bound"
    exact = exact.masked_fill(ignored[..., None], 0.0)
    bound = bound.masked_fill(ignored[..., None], torch.inf)
    try:
        used = check_close(
            out, exact, bound, what="out", message="", may_be_nan=expected.may_be_nan
        )
    except Violation as error:
        mismatch = error.mismatch
        if mismatch is None:
            return False, str(error)
        return False, f"expected {mismatch.expected}, got {mismatch.got}, at {mismatch.where}"
    return True, f"{used:.2g} of the error bound"


def scale_readings(call: Call) -> list[Reading]:
    """Return the readings of a call without a scale under each default scale."""
    return [Reading(name=name, call=call.but(scale=scale(call))) for name, scale in SCALES.items()]


def readings(call: Call, others: Mapping[str, Call] = {}) -> list[Reading]:
    """Return the contract's reading of a call, then others by name."""
    named = {"right": call, **others}
    return [Reading(name=name, call=interpreted) for name, interpreted in named.items()]


def with_profile(name: str, call: Call, **answers: Any) -> Reading:
    """Return a reading with other answers in its profile."""
    return Reading(name=name, call=call, profile=replace(LOOSEST, **answers))


def describe(call: Call) -> str:
    """Describe a call in a line, without its elements."""
    shapes: dict[str, list[str]] = {}
    for name in ("query", "key", "value"):
        size = "×".join(map(str, getattr(call, name).shape))
        shapes.setdefault(size, []).append(name)
    parts = [f"{' = '.join(names)} {size}" for size, names in shapes.items()]
    for name, value in call.keywords().items():
        if not isinstance(value, torch.Tensor):
            parts.append(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}")
            continue
        size = "×".join(map(str, value.shape))
        parts.append(f"{name} {dtype_name(value.dtype)} {size}")
    return f"{', '.join(parts)}, {dtype_name(call.query.dtype)}"


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a storage type without that of the library."""
    return str(dtype).removeprefix("torch.")


def type_name(value: Any) -> str:
    """Return the type of a value, in words."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return type(value).__name__


def describe_exception(error: BaseException) -> str:
    """Describe an exception in a line."""
    lines = str(error).strip().splitlines()
    first = lines[0].strip() if lines else ""
    first = first if len(first) <= 160 else f"{first[:157]}..."
    return f"raises {type(error).__name__}" + (f": {first}" if first else "")

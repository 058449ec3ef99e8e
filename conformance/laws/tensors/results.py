"""Laws of TEN: the form of the output, and arguments and global state left unchanged."""

import torch

from attnspec.conformance.attention.invalid import misshapen, unequal_lengths
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_equal
from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.laws.helpers.calls import plain
from attnspec.conformance.laws.helpers.cases import BF16, DTYPES, F16, F64, SMALL, TINIEST
from attnspec.conformance.laws.helpers.options import check_refused
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, Layout, Layouts, Mask, MaskKind, MaskShape

SQUARE = SMALL.but(queries=7, d_value=8)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17)
MASKED = SMALL.but(mask=Mask(shape=MaskShape.FULL))
ADDED = SMALL.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL))
WIDE = SMALL.but(queries=17, keys=65, d_head=64, d_value=64)
PINNED = (
    TINIEST,
    SQUARE.but(is_causal=True),
    *vary(SQUARE, dtype=(F64, F16, BF16)),
    MASKED,
    ADDED,
    MASKED.but(is_causal=True, queries=7),
    GROUPED.but(scale=0.5),
)
PLAIN_CASES = cases(scales=POSITIVE, only=plain)


@law(
    "TEN-1",
    pinned=(
        *PINNED,
        SMALL.but(d_value=3),
        SMALL.but(d_value=13, dtype=F16),
        *vary(TINIEST, queries=(0, 1), keys=(0, 1), batch=(0,)),
    ),
    wide=(WIDE,),
    explore=cases(scales=POSITIVE, empty=True, only=plain),
)
def law_shape_dtype_and_device(subject: Subject, case: Case) -> None:
    """TEN-1: the output is a tensor (batch, heads, queries, d_value) like the values."""
    subject.call(subject.draw(case))


@law(
    "TEN-2",
    pinned=(*PINNED, SMALL.but(layouts=Layouts(query=Layout.HEADS_INSIDE, key=Layout.TRANSPOSED))),
    explore=cases(scales=POSITIVE, only=plain, layouts=tuple(Layout)),
)
def law_arguments_are_not_written_to(subject: Subject, case: Case) -> None:
    """TEN-2: after a call every argument holds the bits that it held before, in the same place."""
    call = subject.draw(case)
    before = {name: tensor.clone() for name, tensor in call.tensors.items()}
    facts = {name: _metadata(tensor) for name, tensor in call.tensors.items()}
    subject.run(call)
    for name, tensor in call.tensors.items():
        if _metadata(tensor) != facts[name]:
            raise Violation(
                f"the call changes {name} itself: {facts[name]} became {_metadata(tensor)}"
            )
        check_equal(tensor, before[name], what=name, message=f"the call writes to {name}")


def _metadata(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return the properties of a tensor that a call can change besides its contents."""
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.data_ptr(),
        tensor.dtype,
        tensor.requires_grad,
    )


@law(
    "TEN-3",
    pinned=(TINIEST.but(keys=1), *PINNED),
    explore=PLAIN_CASES,
    cost=2,
)
def law_the_output_has_memory_of_its_own(subject: Subject, case: Case) -> None:
    """TEN-3: the output shares memory with no argument and with no other output."""
    call = subject.draw(case)
    first = subject.call(call)
    copy = first.clone()
    second = subject.call(call.but(value=call.value + 1))
    for name, tensor in {**call.tensors, "the output of another call": second}.items():
        if share_storage(first, tensor):
            raise Violation(f"the output shares memory with {name}")
    check_equal(first, copy, what="out", message="a later call writes to an earlier output")
    if first.numel() > 1 and self_overlaps(first):
        raise Violation(f"elements of the output share memory: strides {first.stride()}")


def share_storage(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors that are not empty are views of one storage."""
    not_empty = left.numel() > 0 and right.numel() > 0
    return not_empty and left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()


def self_overlaps(tensor: torch.Tensor) -> bool:
    """Return whether an axis of more than one element has stride zero."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in axes)


@law("TEN-6", pinned=PINNED, explore=PLAIN_CASES)
def law_global_state_is_unchanged(subject: Subject, case: Case) -> None:
    """TEN-6: a call leaves random generators, modes, default dtype and threads alone."""
    call = subject.draw(case)
    with restored_state():
        for seed in (0, 1):
            torch.manual_seed(seed)
            with torch.set_grad_enabled(bool(seed)):
                before = global_state()
                subject.run(call)
                after = global_state()
            for name, value in before.items():
                if value != after[name]:
                    change = "" if isinstance(value, bytes) else f" from {value} to {after[name]}"
                    raise Violation(f"the call changes {name}{change}")


def global_state() -> dict[str, object]:
    """Return the global state that a call could change, by name."""
    state: dict[str, object] = {
        "the state of the random generator": torch.get_rng_state().numpy().tobytes(),
        "the grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "the default dtype": torch.get_default_dtype(),
        "the default device": torch.get_default_device(),
        "the number of threads": torch.get_num_threads(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "the precision of float32 products": torch.get_float32_matmul_precision(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "flushing of denormals": _flushes_denormals(),
    }
    if torch.cuda.is_available():
        state["the state of the CUDA random generator"] = (
            torch.cuda.get_rng_state().numpy().tobytes()
        )
        state["the current stream"] = torch.cuda.current_stream().cuda_stream
    return state


def _flushes_denormals() -> bool:
    """Return whether the processor replaces denormal numbers by zero."""
    return (torch.full((1,), 2.0**-1060, dtype=torch.float64) * 2.0).item() == 0.0


@law("TEN-7", pinned=PINNED, explore=PLAIN_CASES)
def law_no_gradient_is_required_unless_an_argument_requires_one(
    subject: Subject, case: Case
) -> None:
    """TEN-7: if no argument requires a gradient, the output requires none."""
    with torch.enable_grad():
        out = subject.call(subject.draw(case))
    if out.requires_grad:
        raise Violation("the output requires a gradient though no argument does")


@law("TEN-8", pinned=PINNED, explore=PLAIN_CASES)
def law_the_promised_kernel_runs(subject: Subject, case: Case) -> None:
    """TEN-8: if kernel calls are counted, each call of the implementation counts."""
    counters = subject.implementation.counters
    if counters is None:
        raise NotClaimed("counts no kernel calls")
    call = subject.draw(case)
    before = counters().kernel_calls
    subject.call(call)
    after = counters().kernel_calls
    if after <= before:
        raise Violation(
            f"the kernel of {subject.name} did not run: {after} calls counted, as before"
        )


MISFITS = (
    *vary(SMALL, dtype=DTYPES),
    SQUARE,
    SMALL.but(queries=16, keys=64, d_head=16, d_value=16),
    MASKED,
    ADDED,
    GROUPED,
)
MISFIT_CASES = cases(scales=POSITIVE, only=plain, lengths=(3, 4, 5, 7, 8, 15, 16, 17))


@law(
    "TEN-9",
    "TEN-20",
    pinned=MISFITS,
    explore=MISFIT_CASES,
    needs={Feature.VALIDATES},
    cost=4,
)
def law_misshapen_arguments_are_refused(subject: Subject, case: Case) -> None:
    """TEN-9: channels, heads and masks that do not fit raise; nothing comes back."""
    for problem, call in misshapen(subject.draw(case)).items():
        check_refused(subject, call, problem)


@law(
    "TEN-9",
    "TEN-20",
    pinned=(TINIEST, *MISFITS),
    explore=MISFIT_CASES,
    needs={Feature.VALIDATES},
    cost=2,
)
def law_keys_and_values_of_unequal_number_are_refused(subject: Subject, case: Case) -> None:
    """TEN-9: keys and values that differ in number raise, if neither is one and broadcasts."""
    for problem, call in unequal_lengths(subject.draw(case).but(attn_mask=None)).items():
        check_refused(subject, call, problem)

"""Laws of TEN, first part: what comes back, and what must stay as it was."""

import contextlib
from collections.abc import Iterator

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.compare import check_equal
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import POSITIVE, plain
from attnspec.conformance.strategies import cases, every
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import Case, Layout, Layouts, Mask, MaskKind, MaskShape

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
SQUARE = SMALL.but(queries=7, d_value=8)
GROUPED = SMALL.but(heads=6, kv_heads=2, keys=17)
MASKED = SMALL.but(mask=Mask(shape=MaskShape.FULL))
ADDED = SMALL.but(mask=Mask(kind=MaskKind.FLOAT, shape=MaskShape.FULL))
WIDE = SMALL.but(queries=17, keys=65, d_head=64, d_value=64)
PINNED = (
    TINIEST,
    SQUARE.but(is_causal=True),
    *every(SQUARE, dtype=(F64, F16, BF16)),
    MASKED,
    ADDED,
    MASKED.but(is_causal=True, queries=7),
    GROUPED.but(scale=0.5),
)
MORE = cases(scales=POSITIVE, only=plain)


@law(
    "TEN-1",
    judges=Judged.ATTENTION,
    pinned=(
        *PINNED,
        SMALL.but(d_value=3),
        SMALL.but(d_value=13, dtype=F16),
        *every(TINIEST, queries=(0, 1), keys=(0, 1), batch=(0,)),
    ),
    wide=(WIDE,),
    explore=cases(scales=POSITIVE, empty=True, only=plain),
)
def law_shape_dtype_and_device(subject: Subject, case: Case) -> None:
    """TEN-1: the output is a tensor (batch, heads, queries, d_value) like the values."""
    subject.call(subject.draw(case))


@law(
    "TEN-2",
    judges=Judged.ATTENTION,
    pinned=(*PINNED, SMALL.but(layouts=Layouts(query=Layout.HEADS_INSIDE, key=Layout.TRANSPOSED))),
    explore=cases(scales=POSITIVE, only=plain, layouts=tuple(Layout)),
)
def law_arguments_are_not_written_to(subject: Subject, case: Case) -> None:
    """TEN-2: after a call every argument holds the bits that it held before, in the same place."""
    call = subject.draw(case)
    before = {name: tensor.clone() for name, tensor in call.tensors.items()}
    facts = {name: _facts(tensor) for name, tensor in call.tensors.items()}
    subject.run(call)
    for name, tensor in call.tensors.items():
        if _facts(tensor) != facts[name]:
            raise Violation(
                f"the call changes {name} itself: {facts[name]} became {_facts(tensor)}"
            )
        check_equal(tensor, before[name], what=name, message=f"the call writes to {name}")


def _facts(tensor: torch.Tensor) -> tuple[object, ...]:
    """What a call can change about a tensor besides its contents."""
    return (
        tuple(tensor.shape),
        tensor.stride(),
        tensor.data_ptr(),
        tensor.dtype,
        tensor.requires_grad,
    )


@law(
    "TEN-3",
    judges=Judged.ATTENTION,
    pinned=(TINIEST.but(keys=1), *PINNED),
    explore=MORE,
    cost=2,
)
def law_the_output_is_memory_of_its_own(subject: Subject, case: Case) -> None:
    """TEN-3: the output shares memory with no argument and with no other output."""
    call = subject.draw(case)
    first = subject.call(call)
    kept = first.clone()
    second = subject.call(call.but(value=call.value + 1))
    for name, tensor in {**call.tensors, "the output of another call": second}.items():
        if _overlap(first, tensor):
            raise Violation(f"the output shares memory with {name}")
    check_equal(first, kept, what="out", message="a later call writes to an earlier output")
    if first.numel() > 1 and _self_overlaps(first):
        raise Violation(f"elements of the output share memory: strides {first.stride()}")


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """True where two tensors that are not empty are views of one storage."""
    both = one.numel() > 0 and other.numel() > 0
    return both and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _self_overlaps(tensor: torch.Tensor) -> bool:
    """True where an axis of more than one element has stride zero."""
    axes = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and stride == 0 for size, stride in axes)


@law("TEN-6", judges=Judged.ATTENTION, pinned=PINNED, explore=MORE)
def law_global_state_stays_as_it_was(subject: Subject, case: Case) -> None:
    """TEN-6: a call leaves random generators, modes, default dtype and threads alone."""
    call = subject.draw(case)
    with _restored():
        for seed in (0, 1):
            torch.manual_seed(seed)
            with torch.set_grad_enabled(bool(seed)):
                before = _state()
                subject.run(call)
                after = _state()
            for name, was in before.items():
                if was != after[name]:
                    told = "" if isinstance(was, bytes) else f" from {was} to {after[name]}"
                    raise Violation(f"the call changes {name}{told}")


def _state() -> dict[str, object]:
    """The global state that a call could change, by name."""
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
    """True where the processor takes denormal numbers for zero."""
    return (torch.full((1,), 2.0**-1060, dtype=torch.float64) * 2.0).item() == 0.0


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Put back what a faulty subject changes, so that it spoils no other law."""
    generator, dtype = torch.get_rng_state(), torch.get_default_dtype()
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    precision = torch.get_float32_matmul_precision()
    deterministic = torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.set_rng_state(generator)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_grad_enabled(grad)
        torch.set_float32_matmul_precision(precision)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            torch.use_deterministic_algorithms(deterministic)


@law("TEN-7", judges=Judged.ATTENTION, pinned=PINNED, explore=MORE)
def law_no_gradient_is_asked_for(subject: Subject, case: Case) -> None:
    """TEN-7: where no argument requires a gradient, the output requires none."""
    with torch.enable_grad():
        out = subject.call(subject.draw(case))
    if out.requires_grad:
        raise Violation("the output requires a gradient and no argument does")


@law("TEN-8", judges=Judged.ATTENTION, pinned=PINNED, explore=MORE)
def law_the_kernel_that_the_name_promises_ran(subject: Subject, case: Case) -> None:
    """TEN-8: where kernel calls are counted, each call of the implementation counts."""
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
    *every(SMALL, dtype=(F32, F64, F16, BF16)),
    SQUARE,
    SMALL.but(queries=16, keys=64, d_head=16, d_value=16),
    MASKED,
    ADDED,
    GROUPED,
)
MISFIT = cases(scales=POSITIVE, only=plain, lengths=(3, 4, 5, 7, 8, 15, 16, 17))


@law("TEN-9", judges=Judged.ATTENTION, pinned=MISFITS, explore=MISFIT, cost=4)
def law_what_has_no_reading_is_refused(subject: Subject, case: Case) -> None:
    """TEN-9: channels, heads and masks that do not fit raise; nothing comes back."""
    call = subject.draw(case)
    query, key, value = call.query, call.key, call.value
    wrong = {"a value of one axis": call.but(value=value[0, 0, 0])} | _wrong_masks(call)
    if case.kv_heads > 2 and case.heads % (case.kv_heads - 1):
        fewer = call.but(key=key[:, :-1], value=value[:, :-1])
        wrong["key/value heads that the query heads cannot share"] = fewer
    if case.d_head > 2:
        wrong["a key with fewer channels than the query"] = call.but(key=key[..., :-1])
        wrong["a query with fewer channels than the key"] = call.but(query=query[..., :-1])
    _refused(subject, wrong)


@law(
    "TEN-9",
    judges=Judged.ATTENTION,
    pinned=(TINIEST, *MISFITS),
    explore=MISFIT,
    cost=2,
)
def law_keys_and_values_of_unequal_number_are_refused(subject: Subject, case: Case) -> None:
    """TEN-9: keys and values that differ in number raise, where neither is one and broadcasts."""
    call = subject.draw(case).but(attn_mask=None)
    _refused(
        subject,
        {
            f"a call of {case.keys} keys and {case.keys - 1} values": call.but(
                value=call.value[:, :, :-1]
            ),
            f"a call of {case.keys - 1} keys and {case.keys} values": call.but(
                key=call.key[:, :, :-1]
            ),
        },
    )


def _refused(subject: Subject, wrong: dict[str, Call]) -> None:
    """Demand that calls raise, which are named by what is wrong with them."""
    for what, call in wrong.items():
        try:
            out = subject.run(call)
        except Raised:
            continue
        shown = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
        raise Violation(f"{what} is accepted: the output is {shown}")


def _wrong_masks(call: Call) -> dict[str, Call]:
    """Calls whose mask does not broadcast to the scores."""
    mask, (heads, queries) = call.attn_mask, call.query.shape[1:3]
    wrong: dict[str, Call] = {}
    if mask is None:
        return wrong
    if mask.shape[-1] > 2:
        longer = torch.cat([mask, mask[..., :1]], -1)
        wrong["a mask with a key too few"] = call.but(attn_mask=mask[..., :-1])
        wrong["a mask with a key too many"] = call.but(attn_mask=longer, is_causal=False)
    if queries > 2 and mask.shape[-2] > 2:
        wrong["a mask with a query too few"] = call.but(attn_mask=mask[..., :-1, :])
    if heads > 2 and mask.dim() >= 3 and mask.shape[-3] > 2:
        wrong["a mask with a head too few"] = call.but(attn_mask=mask[..., :-1, :, :])
    return wrong

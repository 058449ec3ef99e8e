"""Laws of TEN: elements at offsets beyond 32 bits are read and written at the right place."""

import mmap

import torch

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import NotAvailable
from attnspec.conformance.isolation.memory import require_length, require_memory
from attnspec.conformance.laws.helpers.calls import require_evidence
from attnspec.conformance.laws.helpers.cases import BF16, F16
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Mask, MaskShape

FAR = 2**31
"""The smallest offset that a signed 32-bit number cannot hold."""
FARTHER = 2**32
"""The smallest offset that an unsigned 32-bit number cannot hold."""
TINY = Case(batch=2, heads=2, kv_heads=2, queries=3, keys=3, d_head=2, d_value=2, dtype=F16)
WIDE = TINY.but(queries=5, keys=7, d_head=32, d_value=32)
OUTPUT = Case(
    heads=2,
    kv_heads=2,
    queries=2**23 + 64,
    keys=2,
    d_head=128,
    d_value=128,
    dtype=F16,
)
"""A call whose output alone has more elements than `FAR`."""
TRIAL_LENGTH = 2**14


def spread_out(tensor: torch.Tensor, axis: int, distance: int = FAR) -> torch.Tensor:
    """Return the same numbers, with `distance` elements of memory between the ends of an axis.

    The memory between is never touched, so a CPU does not allocate it.

    Raises:
        NotAvailable: if the memory, or on a CPU the address space, is too small.
    """
    steps = tensor.shape[axis] - 1
    stride = -(-distance // steps)
    inner = torch.empty(tensor.shape, device="meta").stride()
    strides = [*inner[:axis], stride, *inner[axis + 1 :]]
    room = steps * stride + tensor.numel()
    if tensor.device.type != "cpu":
        require_memory(room * tensor.element_size(), str(tensor.device))
    try:
        memory = _reserve(room, tensor)
    except (OSError, RuntimeError) as error:
        gibibytes = room * tensor.element_size() / 2**30
        raise NotAvailable(f"needs {gibibytes:.1f} GiB of address space") from error
    view = torch.as_strided(memory, tensor.shape, strides)
    return view.copy_(tensor)


def _reserve(numbers: int, like: torch.Tensor) -> torch.Tensor:
    """Reserve numbers; a CPU allocates their memory when they are written."""
    if like.device.type != "cpu":
        return torch.empty(numbers, dtype=like.dtype, device=like.device)
    # shared, because private memory counts as used as soon as it is reserved
    memory = mmap.mmap(-1, numbers * like.element_size())
    return torch.frombuffer(memory, dtype=like.dtype)


@law(
    "TEN-4",
    pinned=(
        TINY,
        WIDE.but(dtype=BF16),
        TINY.but(mask=Mask(shape=MaskShape.FULL)),
    ),
    large=(OUTPUT,),
    cost=10,
)
def law_elements_far_apart_in_memory_are_read(subject: Subject, case: Case) -> None:
    """TEN-4: an offset in memory may exceed what 32 bits can count."""
    if case.queries > TRIAL_LENGTH:
        _check_far_output(subject, case)
        return
    _check_spread_out(subject, case, FAR)


@law(
    "TEN-4",
    pinned=(TINY, TINY.but(mask=Mask(shape=MaskShape.FULL))),
    cost=10,
)
def law_elements_beyond_unsigned_32_bits_are_read(subject: Subject, case: Case) -> None:
    """TEN-4: an offset in memory may exceed what 32 bits without a sign can count."""
    _check_spread_out(subject, case, FARTHER)


def _check_spread_out(subject: Subject, case: Case, distance: int) -> None:
    """Judge calls with one operand whose batch elements, heads or positions are far apart."""
    call = subject.draw(case)
    expected = subject.expect(call)
    require_evidence(call, expected)
    operands = {"query": call.query, "key": call.key, "value": call.value}
    if call.attn_mask is not None:
        operands["attn_mask"] = call.attn_mask
    for name, operand in operands.items():
        for axis, kind in enumerate(("batch elements", "heads", "positions")):
            far = call.but(**{name: spread_out(operand, axis, distance)})
            message = f"the output is wrong if the {kind} of {name} lie far apart"
            check_oracle(call, subject.call(far), expected, message)


def _check_far_output(subject: Subject, case: Case) -> None:
    """Judge the last rows of an output with too many elements; queries of a head are equal."""
    reason = subject.refuses(case)
    if reason is not None:
        raise NotAvailable(reason)
    few = draw(case.but(queries=1))

    def run(length: int) -> torch.Tensor:
        return subject.call(few.but(query=few.query.expand(-1, -1, length, -1)))

    require_length(run, TRIAL_LENGTH, case.queries, case.device, by_scores=False)
    rows = torch.tensor([0, 1, case.queries // 2, *range(case.queries - 70, case.queries)])
    expected = subject.expect(few)
    out = run(case.queries)[:, :, rows.to(few.query.device)]
    check_close(
        out,
        expected.out.expand(out.shape),
        expected.bound.expand(out.shape),
        what="out",
        message="a row far back in a large output is wrong",
        dtype=case.dtype,
        places={"query": rows},
    )

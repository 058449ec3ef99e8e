"""A law of TEN: elements that lie further than a 32-bit number counts are found where they lie."""

import mmap

import torch

from attnspec.conformance.compare import check_close
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import Judged, law
from attnspec.conformance.laws.attention_sides import evident
from attnspec.conformance.laws.masking_sides import check_oracle
from attnspec.conformance.memory import demand, demand_length
from attnspec.conformance.subject import Subject
from attnspec.conformance.tally import NotAvailable
from attnspec.spec import Case, Mask, MaskShape

F16, BF16 = torch.float16, torch.bfloat16
FAR = 2**31
"""One element more than a signed 32-bit number counts."""
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
"""A call whose output alone has more elements than that."""
TRIED = 2**14


def spread(tensor: torch.Tensor, axis: int) -> torch.Tensor:
    """The same numbers, with `FAR` elements of memory between the ends of an axis.

    The memory between is never touched, so that a CPU does not have to have it.

    Raises:
        NotAvailable: where it cannot be had.
    """
    steps = tensor.shape[axis] - 1
    stride = -(-FAR // steps)
    inner = torch.empty(tensor.shape, device="meta").stride()
    strides = [*inner[:axis], stride, *inner[axis + 1 :]]
    room = steps * stride + tensor.numel()
    if tensor.device.type != "cpu":
        demand(room * tensor.element_size(), str(tensor.device))
    try:
        memory = _reserved(room, tensor)
    except (OSError, RuntimeError) as error:
        gibibytes = room * tensor.element_size() / 2**30
        raise NotAvailable(f"needs {gibibytes:.1f} GiB of address space") from error
    view = torch.as_strided(memory, tensor.shape, strides)
    return view.copy_(tensor)


def _reserved(numbers: int, like: torch.Tensor) -> torch.Tensor:
    """Numbers of which on a CPU none has memory before it is written to."""
    if like.device.type != "cpu":
        return torch.empty(numbers, dtype=like.dtype, device=like.device)
    # shared, since what is private counts as held as soon as it is reserved
    memory = mmap.mmap(-1, numbers * like.element_size())
    return torch.frombuffer(memory, dtype=like.dtype)


@law(
    "TEN-4",
    judges=Judged.ATTENTION,
    pinned=(
        TINY,
        WIDE.but(dtype=BF16),
        TINY.but(mask=Mask(shape=MaskShape.FULL)),
    ),
    large=(OUTPUT,),
    cost=10,
)
def law_elements_far_apart_are_found(subject: Subject, case: Case) -> None:
    """TEN-4: an offset in memory may exceed what 32 bits can count."""
    if case.queries > TRIED:
        _check_far_output(subject, case)
        return
    call = subject.draw(case)
    expected = subject.expect(call)
    evident(call, expected)
    operands = {"query": call.query, "key": call.key, "value": call.value}
    if call.attn_mask is not None:
        operands["attn_mask"] = call.attn_mask
    for name, operand in operands.items():
        for axis, kind in enumerate(("batch elements", "heads", "positions")):
            far = call.but(**{name: spread(operand, axis)})
            message = f"wrong where the {kind} of {name} lie far apart"
            check_oracle(call, subject.call(far), expected, message)


def _check_far_output(subject: Subject, case: Case) -> None:
    """Hold the last rows of an output of too many elements; all queries of a head are equal."""
    reason = subject.refuses(case)
    if reason is not None:
        raise NotAvailable(reason)
    few = draw(case.but(queries=1))

    def run(length: int) -> torch.Tensor:
        return subject.call(few.but(query=few.query.expand(-1, -1, length, -1)))

    demand_length(run, TRIED, case.queries, case.device, by_scores=False)
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
        rows=rows,
    )

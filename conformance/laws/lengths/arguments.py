"""Laws of LEN: how lengths and offsets are stored, and which of them are refused."""

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import check_oracle
from attnspec.conformance.attention.strategies import POSITIVE, cases, vary
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.helpers.calls import plain, require_evidence
from attnspec.conformance.laws.helpers.cases import DTYPES, SMALL, TINIEST
from attnspec.conformance.laws.helpers.options import check_refused
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Feature, KeyLengths

RAGGED = SMALL.but(batch=3, key_lengths=KeyLengths.RAGGED)
BOTH = RAGGED.but(query_offset=True, is_causal=True, keys=15)
NAMES = ("key_lengths", "query_offset")


@law(
    "LEN-8",
    pinned=(
        TINIEST.but(batch=2, key_lengths=KeyLengths.RAGGED),
        *vary(RAGGED, dtype=DTYPES, seed=(0, 1)),
        BOTH,
        BOTH.but(queries=1, batch=5),
    ),
    explore=cases(
        always=(Feature.KEY_LENGTHS,),
        sometimes=(Feature.QUERY_OFFSET,),
        scales=POSITIVE,
        only=plain,
    ),
    cost=5,
)
def law_lengths_are_read_in_any_memory_and_kept(subject: Subject, case: Case) -> None:
    """LEN-8: int32 and int64, strided or not, give the same; the call writes to neither."""
    call = subject.draw(case)
    expected = subject.expect(call)
    for dtype in (torch.int32, torch.int64):
        for is_strided in (False, True):
            changed = call.but(
                **{
                    name: _stored(numbers, dtype, is_strided=is_strided)
                    for name, numbers in _numbers(call).items()
                }
            )
            out = subject.call(changed)
            kind = f"{'strided ' if is_strided else ''}{str(dtype).removeprefix('torch.')}"
            check_oracle(changed, out, expected, f"lengths or offsets in {kind} are misread")
            for name, numbers in _numbers(call).items():
                if not torch.equal(getattr(changed, name).long(), numbers.long()):
                    raise Violation(f"{name} was written to")
    require_evidence(call, expected)


@law(
    "LEN-9",
    "TEN-20",
    pinned=(
        TINIEST.but(batch=2, key_lengths=KeyLengths.RAGGED),
        RAGGED,
        BOTH,
    ),
    needs={Feature.VALIDATES},
    cost=8,
)
def law_lengths_out_of_range_are_refused(subject: Subject, case: Case) -> None:
    """LEN-9: a negative length or offset, one beyond the keys, and another shape raise."""
    call = subject.draw(case)
    for name, numbers in _numbers(call).items():
        beyond = [("negative", numbers - numbers.amax() - 1)]
        if name == "key_lengths":
            beyond.append(("beyond the keys", numbers + case.keys + 1))
        for problem, changed in (
            *beyond,
            ("for too few batch elements", numbers[:-1]),
            ("for each query", numbers[:, None].expand(-1, 2)),
        ):
            check_refused(subject, call.but(**{name: changed}), f"{name} {problem}")


def _numbers(call: Call) -> dict[str, torch.Tensor]:
    """Return the lengths and offsets that a call has."""
    return {name: value for name, value in call.tensors.items() if name in NAMES}


def _stored(numbers: torch.Tensor, dtype: torch.dtype, *, is_strided: bool) -> torch.Tensor:
    """Return the same numbers in another dtype, alone or as every second one of a buffer."""
    if not is_strided:
        return numbers.to(dtype, copy=True)
    buffer = torch.full((2 * len(numbers),), -1, dtype=dtype, device=numbers.device)
    buffer[::2] = numbers
    return buffer[::2]

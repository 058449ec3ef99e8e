"""Bare functions that read pages: their claims, and six bugs as a user would have them."""

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.mutants.bases.paged import PROFILE, PlainPaged
from attnspec.conformance.operators.subjects import subject_of_operator
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.claims import Claims
from attnspec.conformance.runner.declare_operator import declare_operator
from attnspec.spec.paged import PAGED_FEATURES
from attnspec.spec.profiles import MaskedNonfinite

LAWS = [law for law in laws.load().values() if law.judges == "paged"]


def found(function):
    return declare_operator("it", function, Claims(operator="paged"))


class Kernel:
    """A paged attention as people write it, with one bug or none."""

    def __init__(self, bug=""):
        self.bug, self.prefixes = bug, {}

    def __call__(
        self, query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *,
        seqused_k, block_table, scale=None, window_size=(-1, -1), enable_gqa=False,
        new_key=None, new_value=None,
    ):  # fmt: skip
        out, size = torch.empty_like(query), key.shape[1]
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        for b in range(len(cu_seq_q) - 1):
            rows, length = slice(cu_seq_q[b], cu_seq_q[b + 1]), int(seqused_k[b])
            row = block_table[(b + (self.bug == "neighbour")) % len(block_table)].long()
            if new_key is not None:
                token = torch.arange(length, length + rows.stop - rows.start)
                token = token + (self.bug == "slot")
                page = torch.cat([row, row[-1:]]).clamp(min=0)[token // size]
                key[page, token % size], value[page, token % size] = new_key[rows], new_value[rows]
                length += int(rows.stop - rows.start)
            read = -(-length // size) * size if self.bug == "last page" else length
            token = torch.arange(read)
            column = (token // size + (self.bug == "column")).clamp(max=len(row) - 1)
            k, v = (pool[row[column], token % size].transpose(0, 1) for pool in (key, value))
            if self.bug == "prefix":
                prefix = (key.data_ptr(), key.shape, tuple(row[: length // size].tolist()), read)
                k, v = self.prefixes.setdefault(prefix, (k, v))
            q = query[rows].transpose(0, 1)
            k, v = (x.repeat_interleave(q.shape[0] // x.shape[0], dim=0) for x in (k, v))
            scores = q @ k.mT * scale
            end = len(row) * size if self.bug == "padded length" else read
            after = torch.arange(read) - (torch.arange(q.shape[1]) + end - q.shape[1])[:, None]
            left, right = window_size
            if left >= 0:
                scores = scores.masked_fill(after < -left, -torch.inf)
            if right >= 0:
                scores = scores.masked_fill(after > right, -torch.inf)
            out[rows] = (scores.softmax(-1) @ v).transpose(0, 1)
        return out


@pytest.mark.rotating(parts=3)
@pytest.mark.parametrize(
    ("bug", "cause"),
    [
        ("last page", "the last page is read to its end, past the length"),
        ("column", "the column of the table is one too large"),
        ("slot", ""),
        ("neighbour", "each sequence reads the pages of the next one"),
        ("padded length", "positions count from the capacity of the table"),
        ("prefix", ""),
    ],
)
def test_a_user_with_one_of_six_bugs_is_told(bug, cause):
    subject = subject_of_operator(found(Kernel(bug)))
    records = [check(law, subject, None) for law in LAWS]
    failed = [each for each in records if each.outcome is Outcome.FAILED]
    assert failed, bug
    assert any(each.cause.startswith(cause) for each in failed)
    clauses = {clause for each in failed for clause in each.clauses}
    assert {"slot": "PAG-14", "prefix": "PAG-13"}.get(bug, "PAG-1") in clauses or (
        bug == "padded length" and "PAG-2" in clauses
    )


def test_the_same_kernel_without_a_bug_conforms():
    subject = subject_of_operator(found(Kernel()))
    assert subject.profile.unwritten is MaskedNonfinite.BLOCKED
    for law in LAWS:
        record = check(law, subject, None)
        # a function says nothing about invalid arguments
        is_silent = "validates" in law.needs
        assert record.outcome is (Outcome.NOT_CLAIMED if is_silent else Outcome.PASSED), law.name


def test_a_function_with_every_parameter_claims_every_feature():
    declared = found(PlainPaged())
    assert declared.features == {"causal", "window", "gqa", "lse", "softcap", "sinks", "alibi"}
    assert declared.profile == PROFILE
    assert declared.page_sizes is None


def test_new_tokens_by_name_are_a_feature():
    plain = PlainPaged()

    def paged(*arguments, seqused_k, block_table, new_key=None, new_value=None):
        return plain(
            *arguments,
            seqused_k=seqused_k,
            block_table=block_table,
            new_key=new_key,
            new_value=new_value,
        )

    assert found(paged).features == {"append"} <= PAGED_FEATURES


def test_calls_find_the_page_sizes():
    class Large(PlainPaged):
        def begin(self, *arguments, **paged):
            if self.key.shape[1] % 16:
                raise ValueError("pages of multiples of 16")
            super().begin(*arguments, **paged)

    assert found(Large()).page_sizes == (16, 64, 128, 256)


def test_calls_find_that_nan_in_the_rest_of_a_page_spreads():
    class Spreads(PlainPaged):
        def sequence(self, b, query, key, value):
            out, lse = super().sequence(b, query, key, value)
            whole = torch.arange(-(-self.used[b] // self.page_size) * self.page_size)
            return out + self.pools["value"][self.slots(b, whole)].sum() * 0, lse

    profile = found(Spreads()).profile
    assert profile.unwritten is MaskedNonfinite.PROPAGATES
    assert profile.neighbours is MaskedNonfinite.BLOCKED

"""The sample by which a call is judged: some batch elements, heads and rows of a large one."""

from dataclasses import dataclass

import torch
from jaxtyping import Int

from attnspec.conformance.attention.call import Call
from attnspec.conformance.attention.oracle import Expected
from attnspec.conformance.attention.oracle_gradients import ExpectedGradients
from attnspec.conformance.attention.part import Part
from attnspec.conformance.attention.subject import WRT, Subject
from attnspec.conformance.attention.values import generator
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.laws.helpers.gradients import (
    AXES,
    check_zero,
    empty_rows_are_zero,
    expected_gradient,
    incoming_gradient,
    require_gradient,
)
from attnspec.conformance.laws.helpers.options import ROW_AXES
from attnspec.spec import Case


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest sample of a call.

    Attributes:
        numbers: of keys and values, those of a group for each head that reads them.
        scores: of the rows.
        rows: of each head.
    """

    numbers: int
    scores: int
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """The sample by which a call is judged.

    Attributes:
        call: the whole call.
        part: some batch elements and heads, or all of them.
        few: the call of the part.
        rows: some queries, or all of them.
    """

    call: Call
    part: Part
    few: Call
    rows: Int[torch.Tensor, " rows"]

    @classmethod
    def of(cls, subject: Subject, case: Case, call: Call, limits: Limits) -> "Sample":
        """Return the sample of a case: its first and last head, and others by its seed.

        The gradients of a row that reads nothing are NaN under some profiles, whatever comes in, so
        that a backward pass under these is judged by all rows.
        """
        part = _part(subject, case, call, limits)
        few = part.call(call)
        batch, heads = few.query.shape[:2]
        count = limits.scores // max(1, batch * heads * case.keys)
        count = case.queries if count >= case.queries else min(max(2, count), limits.rows)
        spoils = case.backward and may_have_empty_rows(case) and not empty_rows_are_zero(subject)
        if count >= case.queries or spoils:
            rows = torch.arange(case.queries)
        else:
            order = torch.randperm(case.queries - 2, generator=generator(case.seed, "rows")) + 1
            ends = torch.tensor([0, case.queries - 1])
            rows = torch.cat([ends, order[: count - 2]]).sort().values
        return cls(call=call, part=part, few=few, rows=rows)

    @property
    def places(self) -> dict[str, torch.Tensor]:
        """The places of the sample in the output, by the name of the axis."""
        return {"batch": self.part.batch, "head": self.part.heads, "query": self.rows}

    def of_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the sample of a tensor (batch, heads, queries, ...)."""
        return self.part.of_heads(tensor)[:, :, self.rows.to(tensor.device)]

    def check_call(self, subject: Subject) -> Expected:
        """Make the call, check its results, and return what is expected of the sample."""
        if not self.call.return_lse:
            return self.check_output(subject, subject.call(self.call))
        out, lse = subject.call_with_lse(self.call)
        expected = subject.expect(self.few, rows=self.rows)
        check_close(
            self.of_rows(lse),
            expected.lse,
            expected.lse_bound,
            what="lse",
            message="the log-sum-exp differs from the definition",
            may_be_nan=expected.lse_may_be_nan,
            axes=ROW_AXES,
            places=self.places,
        )
        self._check_output(out, expected)
        return expected

    def check_output(self, subject: Subject, out: torch.Tensor) -> Expected:
        """Check an output of the whole call, and return what is expected of the sample."""
        expected = subject.expect(self.few, rows=self.rows)
        self._check_output(out, expected)
        return expected

    def _check_output(self, out: torch.Tensor, expected: Expected) -> None:
        check_close(
            self.of_rows(out),
            expected.out,
            expected.bound,
            what="out",
            message="the output differs from the definition",
            dtype=self.call.value.dtype,
            may_be_nan=expected.may_be_nan,
            places=self.places,
        )

    def incoming(self, grad: torch.Tensor) -> torch.Tensor:
        """Return an incoming gradient that is zero but for the rows of the sample, in all heads."""
        here = self.rows.to(grad.device)
        grad_of_rows = torch.zeros_like(grad)
        grad_of_rows[:, :, here] = grad[:, :, here]
        return grad_of_rows

    def draw_incoming_alone(self, case: Case, kind: str) -> torch.Tensor:
        """Draw an incoming gradient of a kind that is zero but for the sample, contiguous."""
        part = self.part
        few = case.but(
            batch=len(part.batch),
            heads=len(part.heads),
            kv_heads=len(part.kv_heads),
            queries=len(self.rows),
        )
        shape = (case.batch, case.heads, case.queries, case.d_value)
        grad = torch.zeros(shape, dtype=case.dtype, device=case.device)
        places = part.batch[:, None, None], part.heads[:, None], self.rows.to(grad.device)
        grad[places] = incoming_gradient(few, kind)
        return grad

    def check_gradients(
        self,
        subject: Subject,
        gradients: dict[str, torch.Tensor | None],
        grad: torch.Tensor,
    ) -> ExpectedGradients:
        """Check gradients of the whole call, and return what is expected of the part.

        If no gradient comes into other heads, those of their operands are zero, unless rows that
        read nothing make them NaN.

        Args:
            subject: the subject.
            gradients: by operand.
            grad: the incoming gradient of the whole call, by one of the methods above.
        """
        here = self.part.of_heads(grad)
        others = self.part.is_whole or bool(here.count_nonzero() < grad.count_nonzero())
        alone = not others and empty_rows_are_zero(subject)
        expected = subject.expect_gradients(self.few, here, rows=self.rows)
        for name, gradient in gradients.items():
            got, exact = require_gradient(gradient, name), expected_gradient(expected, name)
            few, places = self._of_gradient(got, name)
            check_close(
                few,
                exact.exact,
                exact.bound,
                what=f"gradient of {name}",
                message="a gradient differs from the definition",
                dtype=got.dtype,
                may_be_nan=exact.may_be_nan,
                axes=AXES[name],
                places=places,
            )
            if name in WRT and alone:
                message = "an operand has a gradient of a head that no gradient comes into"
                check_zero(self.part.outside(got, name), name, None, message)
        return expected

    def _of_gradient(
        self, gradient: torch.Tensor, name: str
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the sample of the gradient of an operand, and its places by axis."""
        if name == "query":
            return self.of_rows(gradient), self.places
        if name in ("key", "value"):
            places = {"batch": self.part.batch, "head": self.part.kv_heads}
            return self.part.of_kv_heads(gradient), places
        few = self.part.of_mask(gradient)
        if few.shape[-2] == 1:
            return few, {}
        return few[..., self.rows.to(few.device), :], {"query": self.rows}


def may_have_empty_rows(case: Case) -> bool:
    """Return whether a query of a case may read no key."""
    hides = case.mask is not None or case.window is not None or case.key_lengths is not None
    return hides or case.keys == 0 or (case.is_causal and case.queries > case.keys)


LARGEST_PART = 3
"""Key/value heads of a part."""


def _part(subject: Subject, case: Case, call: Call, limits: Limits) -> Part:
    """Return the whole of a call, or some of its batch elements and key/value heads."""
    grouping = subject.implementation.profile.grouping
    of_group = case.heads // case.kv_heads * case.keys * (case.d_head + case.d_value)
    batch, kv_heads = torch.arange(case.batch), torch.arange(case.kv_heads)
    if case.batch * case.kv_heads * of_group > limits.numbers:
        room = max(1, limits.numbers // max(1, of_group))
        dice = generator(case.seed, "part")
        batch = _some(batch, 2 if room >= 2 * LARGEST_PART else 1, dice)
        kv_heads = _some(kv_heads, min(room, LARGEST_PART), dice)
    return Part.of(call, batch, kv_heads, grouping)


def _some(places: torch.Tensor, count: int, dice: torch.Generator) -> torch.Tensor:
    """Return one place at random; of several, also the last one, and then the first one."""
    drawn = places[torch.randint(len(places), (1,), generator=dice)]
    return torch.cat([drawn, places[-1:], places[:1]])[:count]

"""Experiments that compare a few calls with what known conventions give for them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from attnspec.conformance.attention.call import Call
from attnspec.conformance.probe.experiment import Experiment, Finding, not_supported
from attnspec.conformance.probe.harness import Harness, Verdict, readings, with_profile

LARGEST_PICTURE = 64
"""The largest number of pairs of a query and a key that a picture shows."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """A call that uses an option, in the first of some spellings that the target accepts.

    Attributes:
        name: the option, in words, with which a deviation begins.
        spellings: changes to the plain case.
        condition: an expression on a `case` that is true for calls of this form. A refused form
            with a condition is left out of the declaration, and the other forms are tried; a
            refused form without one means that the option is not supported.
        lengths: the numbers of queries and of keys, in units of the harness; None is the usual.
    """

    name: str
    spellings: tuple[Mapping[str, Any], ...]
    condition: str = ""
    lengths: tuple[int, int] | None = None

    def call(self, harness: Harness) -> Call:
        """Return the first call that gives an output, or the first if none does."""
        call = self.accepted(harness) if len(self.spellings) > 1 else None
        return harness.draw(**self._sizes(harness), **self.spellings[0]) if call is None else call

    def accepted(self, harness: Harness, **changes: Any) -> Call | None:
        """Return the first call that gives an output, with more changes to the plain case."""
        sizes = self._sizes(harness)
        calls = (harness.draw(**sizes, **spelling, **changes) for spelling in self.spellings)
        return next((call for call in calls if harness.run(call).out is not None), None)

    def _sizes(self, harness: Harness) -> dict[str, int]:
        if self.lengths is None:
            return {}
        queries, keys = (count * harness.unit for count in self.lengths)
        return {"queries": queries, "keys": keys}


@dataclass(frozen=True, kw_only=True)
class Comparison(Experiment):
    """An experiment whose answer is the reading that agrees with its calls.

    Attributes:
        forms: the calls.
        readings: returns the readings of a call beside the contract's, by name; the scale of the
            call is explicit, and passed once more.
        right: the answer if the contract's reading agrees with every call.
        wrong: the deviation if no reading agrees with a call whose form has this `name`.
        is_drawn: true if the evidence shows which keys each query reads.
        decides: a field of the profile and its answers, if each of these is right; the finding
            then names the one that agrees.
        then: extends the right answer by further calls like the first right one.
        condition: an expression on a `case` that is true for all calls of the forms. Where it is
            given, the declaration refuses these calls if a form deviates.
    """

    forms: tuple[Form, ...]
    readings: Callable[[Call, float], Mapping[str, Call]]
    right: str = "yes"
    wrong: str = "{name}: wrong"
    is_drawn: bool = False
    decides: tuple[str, type[StrEnum]] | None = None
    then: Callable[[Harness, Finding, Call], Finding] | None = None
    condition: str = ""

    def answer(self, harness: Harness) -> Finding:
        """Compare the calls in their order, up to the first that is wrong."""
        evidence: list[str] = []
        supports: list[list[str]] = []
        first: Call | None = None
        facts: dict[str, Any] = {"features": [str(feature) for feature in self.features]}
        right = self.right
        for form in self.forms:
            call = form.call(harness)
            if call.is_causal and harness.missing_parameter("is_causal"):
                continue
            verdict = self.compare(harness, call)
            is_right = verdict.names[:1] == ("right",)
            if self.decides is not None and verdict.names[:1]:
                field, answers = self.decides
                is_right = verdict.names[0] in set(answers)
                if is_right and len(verdict.names) == 1:
                    right = f"{self.right}, {verdict.names[0]}"
                    facts["profile"] = {field: verdict.names[0]}
            has_picture = self.is_drawn and not (verdict.is_refusal or (is_right and first))
            evidence.append(verdict.message + (picture(harness, call) if has_picture else ""))
            if is_right:
                first = first or call
            elif not verdict.is_refusal:
                return self._deviating(form.name, verdict, evidence)
            elif form.condition:
                supports.append([form.condition, f"{form.name} is refused: {verdict.problem}"])
            else:
                return not_supported(*evidence)
        if first is None:
            return not_supported(*evidence[:1])
        finding = Finding(
            answer=right,
            evidence=tuple(evidence),
            facts=facts | ({"supports": supports} if supports else {}),
        )
        return finding if self.then is None else self.then(harness, finding, first)

    def compare(self, harness: Harness, call: Call) -> Verdict:
        """Name the readings of a call that agree."""
        oracle_call = harness.oracle_call(call)
        assert oracle_call.scale is not None
        others = self.readings(oracle_call, oracle_call.scale)
        if self.decides is not None:
            field, answers = self.decides
            known = [with_profile(str(each), oracle_call, **{field: each}) for each in answers]
            return harness.compare(call, known + readings(oracle_call, others)[1:])
        return harness.compare(call, readings(oracle_call, others))

    def _deviating(self, name: str, verdict: Verdict, evidence: list[str]) -> Finding:
        """Return the finding for a wrong result or another convention."""
        answer = " or ".join(verdict.names)
        details = verdict.problem or answer
        deviation = f"{name}: {details}" if details else self.wrong.format(name=name)
        return Finding(
            answer=answer or "wrong",
            evidence=tuple(evidence),
            deviation=deviation,
            facts={"supports": [[self.condition, deviation]]} if self.condition else {},
        )


def picture(harness: Harness, call: Call) -> str:
    """Return a picture of the keys that each query reads, or an empty string.

    With equal scores and identity values, the output holds the attention weights.
    """
    queries, keys, channels = call.query.shape[2], call.key.shape[2], call.value.shape[3]
    if queries * keys > LARGEST_PICTURE or keys > channels:
        return ""
    value = torch.eye(keys, channels).to(call.value).expand_as(call.value).contiguous()
    out = harness.run(call.but(query=torch.zeros_like(call.query), value=value)).out
    if out is None:
        return ""
    rows = out[0, 0, :, :keys].tolist()
    signs = (
        "".join("?" if weight != weight else "x" if weight else "." for weight in row)
        for row in rows
    )
    drawn = " ".join(signs)
    return f"; query by query it reads {drawn}"

"""Laws tried on given cases, and a correct attention with another profile, for several tests."""

from collections.abc import Iterable
from typing import Any

import torch

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotClaimed
from attnspec.conformance.laws.law import Law
from attnspec.conformance.mutants.bases.dense import DenseWithArguments
from attnspec.spec import EmptyRow


class Answering(DenseWithArguments):
    """A correct attention with another result for rows that read nothing."""

    def __init__(self, answer: EmptyRow) -> None:
        self.answer = answer

    def softmax(self, scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        keys = self.call["key"].shape[2]  # without the sink
        fill = 1 / max(keys, 1) if self.answer is EmptyRow.MEAN else torch.nan
        empty = ~visible.any(-1, keepdim=True)
        return super().softmax(scores, visible).masked_fill(empty, fill)


def pinned_judged_count(law: Law, subject: Any) -> int:
    """Try the pinned cases that are claimed; return on how many of them a law said something."""
    cases = law.pinned
    if isinstance(subject, Subject):
        cases = [case for case in cases if subject.refuses(case) is None]
    return judged_count(law, subject, cases)


def judged_count(law: Law, subject: Any, cases: Iterable[Any]) -> int:
    """Try some cases of a law; return on how many of them it said something."""
    said = 0
    for case in cases:
        try:
            law.check(subject, case)
        except NotClaimed:
            continue
        said += 1
    return said

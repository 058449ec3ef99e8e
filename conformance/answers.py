"""What implementations answer to the calls by which bugs are told apart."""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnspec.conformance.call import Call
from attnspec.conformance.mutants.registry import Mutant
from attnspec.conformance.process import restored
from attnspec.conformance.reach import Attention, Reach
from attnspec.conformance.sharing import content_of
from attnspec.spec import Case, Implementation

Answer = dict[str, torch.Tensor]
"""Output, log-sum-exp and gradients, by name."""

REFUSED = "refused"
"""Stands for the answer to a case that is not claimed."""


@dataclass(frozen=True)
class Question:
    """A call, the gradient that is handed back through it, and how far apart equal answers lie."""

    case: Case | None
    call: Call
    grad_out: torch.Tensor | None
    wrt: tuple[str, ...]
    slack: Answer

    @functools.cached_property
    def key(self) -> Any:
        """What an answer depends on."""
        return self.case or content_of((self.call, self.grad_out, self.wrt))


def answer(implementation: Implementation, question: Question) -> Answer | None:
    """Ask an implementation a question: what it answers, or nothing where it raises."""
    # some write to their arguments, and some to what they share with everyone
    call, grad_out = copy.deepcopy((question.call, question.grad_out))
    wrt = question.wrt if grad_out is not None else ()
    leaves = {name: getattr(call, name).detach().requires_grad_() for name in wrt}
    try:
        with restored(), torch.enable_grad():
            given = call.but(**leaves)
            found = implementation.attention(
                given.query, given.key, given.value, **given.keywords()
            )
            out, lse = found if isinstance(found, tuple) else (found, None)
            # clones: what is behind a view, or a result that knows its past, is never freed
            answer = {"out": out.detach().clone()}
            if lse is not None:
                answer["lse"] = lse.detach().clone()
            if out.requires_grad:
                gradients = torch.autograd.grad(
                    out, list(leaves.values()), grad_out, allow_unused=True
                )
                for name, gradient in zip(wrt, gradients, strict=True):
                    answer[name] = torch.zeros(()) if gradient is None else gradient
    except Exception:
        return None
    return answer


Keyed = tuple[Any, Answer | None]
"""What equal answers have in common, or `REFUSED` where the case is not claimed; and the answer."""


Asking = Callable[[Mutant], Keyed]


def asked(question: Question) -> Asking:
    """What mutants answer to a question; one that takes no mistaken step answers as its base."""
    reach: Reach[Keyed] = Reach()

    def ask(mutant: Mutant) -> Keyed:
        subject = mutant.subject
        if question.case is not None and subject.refuses(question.case) is not None:
            return REFUSED, None

        def keyed(attention: Attention) -> Keyed:
            given = answer(replace(subject, attention=attention), question)
            return key_of(given, mutant.id), given

        return reach.find("answer", subject.attention, keyed)

    return ask


@dataclass
class Answered:
    """What mutants answered to questions, each different answer once.

    Most mutants answer most questions alike, bit by bit, and are asked most of them often.
    """

    _asked: dict[Any, tuple[dict[str, Any], Asking]] = field(default_factory=dict)
    _answers: dict[Any, Answer | None] = field(default_factory=dict)

    def to(self, question: Question) -> Asking:
        """What `asked` gives for one question, from memory where it was asked before."""
        known, asking = self._asked.setdefault(question.key, ({}, asked(question)))

        def ask(mutant: Mutant) -> Keyed:
            if mutant.id not in known:
                key, given = asking(mutant)
                known[mutant.id] = key
                self._answers.setdefault(key, given)
            key = known[mutant.id]
            return key, self._answers[key]

        return ask


def key_of(given: Answer | None, otherwise: str) -> Any:
    """What equal answers have in common; `otherwise` for one that holds no numbers."""
    try:
        return content_of(given)
    except (RuntimeError, TypeError):
        return otherwise

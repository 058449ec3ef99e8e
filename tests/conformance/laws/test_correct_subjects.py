"""Every law accepts correct subjects of its kind, and the pass is evidence."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from trying import Answering

from attnspec.conformance import laws
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.violation import NotAvailable, NotClaimed
from attnspec.conformance.evidence.soundness.tiles import Fused
from attnspec.conformance.laws.law import Law
from attnspec.conformance.laws.tensors.results import global_state
from attnspec.conformance.mutants.attention_options.softcap import CapAfterBias
from attnspec.conformance.mutants.bases.dense import Dense, dense
from attnspec.conformance.mutants.bases.explicit_backward import Explicit
from attnspec.conformance.mutants.bases.gpt2 import COMPACT
from attnspec.conformance.mutants.bases.lengths import Ragged
from attnspec.conformance.mutants.bases.sampler import Sampler, sampler
from attnspec.conformance.mutants.bases.tiled import Tiled
from attnspec.conformance.mutants.cache.steps import LowerRightDense
from attnspec.conformance.mutants.heads.groups import RepeatedByTurns
from attnspec.conformance.operators.subjects import DECLARATIONS
from attnspec.conformance.runner.check import claims
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.conformance.text.words import define
from attnspec.implementations import load
from attnspec.spec import (
    CausalAlignment,
    Counters,
    EmptyRow,
    Extra,
    Feature,
    Grouping,
    Implementation,
    MaskedNonfinite,
    Scheme,
    SoftcapOrder,
    TokenizerImplementation,
    clause,
)

LAWS = laws.load()

JUDGED = {
    # the error bound of some cases in float16 and bfloat16 is as large as the output
    "output-equals-the-definition": 0.9,
    "options-combine": 0.9,
    "two-halves-merge-into-the-whole": 0.9,
    "sinks-are-added-to-the-denominator": 0.9,
    "alibi-lowers-scores-by-distance": 0.9,
    # the logits of some models are ill-conditioned
    **{name: 0.75 for name, law in LAWS.items() if law.judges is SubjectKind.MODEL},
}
"""The share of its cases that a law has to judge; a law that is not listed judges all of them."""


class Counting(Dense):
    """A correct attention that counts its calls."""

    calls = 0

    def finish(self, out: torch.Tensor, value: torch.Tensor) -> Any:
        self.calls += 1
        return super().finish(out, value)


class LowerRightTiled(LowerRightDense, Tiled):
    """A correct attention by tiles, aligned lower-right."""


class LowerRightRagged(Ragged):
    lower_right = True


class Blocking(Dense):
    """A correct attention that multiplies nothing but readable keys and values."""

    visible: torch.Tensor

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> Any:
        scores = torch.zeros(*query.shape[:3], key.shape[2])
        self.visible, _ = self.mask(attn_mask, is_causal, scores)
        if options.get("window") is not None:
            self.visible = self.visible & self.window(*options["window"], *scores.shape[2:])
        by_name = options | {"scale": scale, "enable_gqa": enable_gqa}
        return super().__call__(query, key, value, attn_mask, dropout_p, is_causal, **by_name)

    def scores(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        return (query[..., None, :] * self.readable(key)).sum(-1) * scale

    def mix(self, weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return (weights[..., None] * self.readable(value)).sum(-2)

    def readable(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return keys or values for each query, with zeros for those that it may not read."""
        return tensor[:, :, None].masked_fill(~self.visible[..., None], 0.0)


@dataclass(frozen=True, kw_only=True)
class Correct:
    """A correct subject.

    Attributes:
        subject: a `Subject` for laws of attention, else the record of the implementation.
        kind: the kind of laws that judge it.
        accepts: which of these laws are tried on it; by default all whose features it claims.
        judged: the share of its cases that a law has to judge; 0.0 for a law that judges none.
    """

    subject: Any
    kind: SubjectKind = SubjectKind.ATTENTION
    accepts: Callable[[Law], bool] = lambda law: True
    judged: Mapping[str, float] = field(default_factory=dict)

    def takes(self, law: Law) -> bool:
        """Return whether a law is tried on it."""
        able = law.judges is self.kind and law.needs.issubset(claims(self.subject))
        return able and self.accepts(law)


def attention(name: str, base: Dense, *without: Feature, **profile: object) -> Implementation:
    """Declare a correct attention that claims every feature but those named."""
    declared = dense(name, base)
    lengths = () if isinstance(base, Ragged) else (Feature.KEY_LENGTHS, Feature.QUERY_OFFSET)
    features = frozenset(Feature).difference(without, lengths)
    return replace(declared, features=features, profile=replace(declared.profile, **profile))


def of_chapters(*chapters: str) -> Callable[[Law], bool]:
    """Select the laws of some chapters."""
    return lambda law: clause(law.clauses[0]).chapter in chapters


MASKED = ("attention_options", "masking", "positions", "gradients")
"""The chapters whose results depend on the profile."""
COUNTING = Counting()
LOWER_RIGHT = {"causal_alignment": CausalAlignment.LOWER_RIGHT}
# only "dense" counts its kernel calls
NOT_COUNTED = {"the-promised-kernel-runs": 0.0}
# the gradient of an empty row is defined only if the row gives zero
NOT_ZERO = {
    "an-empty-row-adds-nothing-to-gradients": 0.0,
    "gradients-equal-the-definition": 0.9,
}
CORRECT = {
    "dense": Correct(
        subject=replace(
            attention("dense", COUNTING),
            extras=frozenset({Extra.VMAP}),
            counters=lambda: Counters(kernel_calls=COUNTING.calls),
        )
    ),
    "tiled": Correct(
        subject=replace(attention("tiled", Tiled()), extras=frozenset({Extra.VMAP})),
        judged=NOT_COUNTED,
    ),
    "explicit": Correct(
        subject=attention("explicit", Explicit(), Feature.DROPOUT),
        accepts=of_chapters("gradients", "numerics"),
        # it gives the gradients that it must give, and no others
        judged={
            "second-derivatives-are-right-or-raise": 0.0,
            "gradients-of-the-log-sum-exp-are-right-if-it-has-any": 0.0,
            "gradients-of-output-and-log-sum-exp-add": 0.0,
            "gradients-of-sinks-are-right-if-they-have-any": 0.0,
            "gradients-of-slopes-are-right-if-they-have-any": 0.0,
        },
    ),
    "split_keys": Correct(
        subject=attention(
            "split_keys",
            Fused(tile=2, splits=4, shares_of_lse=True, mask_rounded=True),
            Feature.DROPOUT,
        ),
        # it keeps the parts of a call until the next one, so that two threads disturb each other
        accepts=lambda law: (
            of_chapters("attention", *MASKED, "numerics")(law)
            and law.name != "backward-passes-may-run-in-any-thread"
        ),
        # it has gradients of queries, keys and values alone, and none of these
        judged={
            "second-derivatives-are-right-or-raise": 0.0,
            "gradients-of-the-log-sum-exp-are-right-if-it-has-any": 0.0,
            "gradients-of-output-and-log-sum-exp-add": 0.0,
            "gradients-of-sinks-are-right-if-they-have-any": 0.0,
        },
    ),
    "lower_right": Correct(
        subject=attention("lower_right", LowerRightDense(), **LOWER_RIGHT),
        accepts=of_chapters(*MASKED, "cache"),
        # its last query reads every key: few cases have unread keys, or rows that read nothing
        judged={
            "an-extension-changes-no-earlier-row": 0.8,
            "unreadable-keys-have-no-gradient": 0.6,
            "an-empty-row-adds-nothing-to-gradients": 0.9,
            "unreadable-nan-and-infinity-reach-no-gradient": 0.8,
        },
    ),
    "lower_right_tiled": Correct(
        subject=attention("lower_right_tiled", LowerRightTiled(), **LOWER_RIGHT),
        accepts=of_chapters("cache"),
    ),
    "blocking": Correct(
        subject=attention(
            "blocking",
            Blocking(),
            masked_keys=MaskedNonfinite.BLOCKED,
            masked_values=MaskedNonfinite.BLOCKED,
        ),
        accepts=of_chapters(*MASKED, "cache"),
    ),
    "ragged": Correct(subject=attention("ragged", Ragged()), accepts=of_chapters("lengths")),
    "ragged_lower_right": Correct(
        subject=attention("ragged_lower_right", LowerRightRagged(), **LOWER_RIGHT),
        accepts=of_chapters("lengths"),
    ),
    "mean": Correct(
        subject=attention("mean", Answering(EmptyRow.MEAN), empty_row=EmptyRow.MEAN),
        accepts=of_chapters(*MASKED),
        judged=NOT_ZERO,
    ),
    "nan": Correct(
        subject=attention("nan", Answering(EmptyRow.NAN), empty_row=EmptyRow.NAN),
        accepts=of_chapters(*MASKED),
        judged=NOT_ZERO,
    ),
    "interleaved": Correct(
        subject=attention("interleaved", RepeatedByTurns(), grouping=Grouping.INTERLEAVED),
        accepts=of_chapters("heads", *MASKED, "numerics"),
    ),
    "after_bias": Correct(
        subject=attention("after_bias", CapAfterBias(), softcap_order=SoftcapOrder.AFTER_BIAS),
        accepts=of_chapters("attention", *MASKED, "numerics"),
        # the law puts a key in the place of a sink, and the softcap would bound the key's score
        judged={"gradients-of-sinks-are-right-if-they-have-any": 0.8},
    ),
    # a law of decoding shows a query its keys by the flag, by a mask, or one query at a time
    "no_mask": Correct(
        subject=attention("no_mask", Dense(), Feature.MASK),
        accepts=of_chapters("cache"),
        judged={name: 0.6 for name in LAWS},
    ),
    "no_flag": Correct(
        subject=attention(
            "no_flag", Answering(EmptyRow.NAN), Feature.CAUSAL, empty_row=EmptyRow.NAN
        ),
        accepts=of_chapters("cache"),
        judged={name: 0.8 for name in LAWS},
    ),
    # without a mask or the flag, few decodings of several queries can be written down
    "plain": Correct(
        subject=attention("plain", Dense(), *Feature),
        accepts=of_chapters("cache"),
        judged={
            **{name: 0.2 for name in LAWS},
            "windows-and-slopes-count-from-the-position-of-a-query": 0.0,
        },
    ),
    "custom_op": Correct(
        subject=load("custom_op"),
        accepts=lambda law: not law.needs.isdisjoint({Extra.COMPILE, Extra.OPCHECK}),
        # one of four cases has options that it does not claim
        judged={"a-compiled-call-equals-a-plain-call": 0.7},
    ),
    "model": Correct(subject=COMPACT, kind=SubjectKind.MODEL),
    "sampler": Correct(subject=sampler("correct", Sampler()), kind=SubjectKind.SAMPLER),
    "tokenizer": Correct(
        subject=TokenizerImplementation(name="definition", load=define, schemes=frozenset(Scheme)),
        kind=SubjectKind.TOKENIZER,
    ),
}
# law by law: subjects with one profile share the cached results of the oracle
TRIALS = [
    (name, each) for name, law in LAWS.items() for each in CORRECT if CORRECT[each].takes(law)
]
SHARE = 6
"""A design of hundreds of cases takes minutes: one subject tries every sixth."""
WIDE = [
    (name, each)
    for name, each in TRIALS
    if LAWS[name].wide and (each == "tiled" or (each == "dense" and not callable(LAWS[name].wide)))
]


def check_evidence(law, correct, cases):
    """Try a law on a correct subject, and check that it judges as many cases as it has to."""
    is_attention = law.judges is SubjectKind.ATTENTION
    subject = Subject(correct.subject) if is_attention else correct.subject
    judged, others = 0, []
    before = global_state()
    for case in cases:
        reason = subject.refuses(case) if isinstance(subject, Subject) else None
        if reason is None:
            try:
                law.check(subject, case)
            except NotClaimed as error:
                reason = error
        if reason is None:
            judged += 1
        elif not isinstance(reason, NotAvailable):
            others.append(f"{case}: {reason}")
        else:
            missing = str(reason)
    assert not is_attention or global_state() == before
    if not judged and not others:
        pytest.skip(missing)
    least = correct.judged.get(law.name, JUDGED.get(law.name, 1.0))
    assert judged >= least * (judged + len(others)), others
    assert judged == 0 or least > 0


@pytest.mark.rotating(parts=24)
@pytest.mark.parametrize(
    ("law", "correct"),
    [
        # torch.compile and opcheck take seconds
        pytest.param(*trial, marks=pytest.mark.slow) if trial[1] == "custom_op" else trial
        for trial in TRIALS
    ],
)
def test_a_correct_subject_passes_and_the_pass_is_evidence(law, correct):
    law, correct = LAWS[law], CORRECT[correct]
    cases = law.pinned
    if law.design:
        cases = (*cases, *law.design(Subject(correct.subject)))
    check_evidence(law, correct, cases)


@pytest.mark.slow
@pytest.mark.rotating(parts=24)
@pytest.mark.parametrize(("law", "correct"), WIDE)
def test_wide_cases_pass_and_the_pass_is_evidence(law, correct):
    wide = LAWS[law].wide
    if callable(wide):
        wide = wide(Subject(CORRECT[correct].subject), 0)[::SHARE]
    check_evidence(LAWS[law], CORRECT[correct], wide)


def test_every_law_is_tried_on_a_correct_subject():
    """The laws of operators are tried in the tests of their chapters."""
    of_operators = {name for name, law in LAWS.items() if law.judges in DECLARATIONS}
    assert {law for law, _ in TRIALS} == set(LAWS) - of_operators

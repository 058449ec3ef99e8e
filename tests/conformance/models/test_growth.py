"""Pinned cases of models at large sizes: what they keep, and the mistakes that they find."""

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.models.case import PADDED, PINNED
from attnspec.conformance.models.growth import (
    MANY_IDS,
    SMALL_BY_NATURE,
    WIDTH,
    Growth,
    grown,
    grown_cases,
)
from attnspec.conformance.mutants.bases.gpt2 import CompactGPT2, implementation
from attnspec.conformance.report.record import Outcome
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.spec import GPT2Config

LAWS = laws.load()


@pytest.mark.parametrize("case", [*PINNED[:6], *PADDED[:3]], ids=str)
@pytest.mark.parametrize("growth", Growth)
def test_switches_and_unused_positions_stay(case, growth):
    large = grown(case, growth, random.Random(0))
    assert large.n_embd == (768 if growth is Growth.CHANNELS else WIDTH)
    assert large.dtype == torch.float64
    assert large.n_positions - large.length == case.n_positions - case.length
    for name in ("padding", "tied", "activation_function", "layer_norm_epsilon", "seed"):
        assert getattr(large, name) == getattr(case, name)
    assert large.batch >= case.batch
    assert large.n_layer >= case.n_layer
    assert {
        Growth.TOKENS: large.length > 256,
        Growth.LAYERS: large.n_layer > 5 and large.length > 64,
        Growth.ROWS: large.batch > 3 and large.length > 128,
        Growth.CHANNELS: large.n_layer > 1,
        Growth.IDS: large.vocab_size == MANY_IDS and large.length > 64,
    }[growth]


def test_the_laws_of_a_run_meet_every_growth():
    tried = {
        name: grown_cases(name, law.pinned, 0, 1)
        for name, law in LAWS.items()
        if law.judges is SubjectKind.MODEL and name not in SMALL_BY_NATURE
    }
    assert all(len(cases) == 1 for cases in tried.values())
    cases = [case for (case,) in tried.values()]
    assert sum(case.length > 256 for case in cases) > len(cases) / 5
    assert sum(case.n_layer > 5 for case in cases) > 3
    assert sum(case.batch > 3 for case in cases) > 3
    assert sum(case.n_embd == 768 for case in cases) > 3
    assert sum(case.vocab_size == MANY_IDS for case in cases) > 3


def test_more_cases_of_a_law_are_of_other_growths():
    law = LAWS["logits-equal-the-oracles"]
    cases = grown_cases(law.name, law.pinned, 0, 3)
    assert [sum(case.length > 256 for case in cases), len(cases)] == [1, 3]


def test_laws_that_stay_small_are_known():
    assert set(SMALL_BY_NATURE) <= set(LAWS)
    for name in SMALL_BY_NATURE:
        assert grown_cases(name, LAWS[name].pinned, 0, 1) == []


class CopiedParameters(CompactGPT2):
    """Of a model of over 64 channels, parameters are copied when it is made."""

    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__(config, parameters)
        self.given = dict(parameters)
        if config.n_embd > 64:
            self.copies = {name: each.detach().clone() for name, each in parameters.items()}

    def __call__(self, input_ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if self.config.n_embd > 64 and not torch.is_grad_enabled():
            self.parameters = self.copies
        try:
            return super().__call__(input_ids, *rest, **options)
        finally:
            self.parameters = self.given


def test_a_mistake_of_wide_models_alone_is_found():
    law = LAWS["a-change-of-the-parameters-changes-the-next-logits"]
    model = implementation("it", CopiedParameters)
    outcomes = {
        effort: check(law, model, effort, seed=0, repeats=0).outcome
        for effort in (Effort.SMOKE, Effort.STANDARD)
    }
    assert outcomes == {Effort.SMOKE: Outcome.PASSED, Effort.STANDARD: Outcome.FAILED}

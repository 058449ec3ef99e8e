"""Pinned cases of models at large sizes: what they keep, and the mistakes that they find."""

import itertools
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from attnspec.conformance import laws
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.models.case import PADDED, PINNED, Padding, draw
from attnspec.conformance.models.growth import (
    GRADIENTS,
    IN_FLOAT32,
    IN_FLOAT64_ALONE,
    LARGEST_TABLE,
    LARGEST_TABLE_WITH_GRADIENTS,
    LOGITS,
    MANY_IDS,
    MORE_OF_EVERYTHING,
    OF_SEVERAL_SIZES,
    OF_TWO_SIZES,
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
    large = grown(case, [growth], random.Random(0))
    assert large.n_embd == (768 if growth is Growth.CHANNELS else WIDTH)
    assert large.dtype == torch.float64
    assert large.n_positions - large.length == case.n_positions - case.length
    for name in ("padding", "tied", "activation_function", "layer_norm_epsilon", "seed"):
        assert getattr(large, name) == getattr(case, name)
    assert large.batch >= case.batch
    assert large.n_layer >= case.n_layer
    assert has_grown(large, growth)


def has_grown(case, growth):
    return {
        Growth.TOKENS: case.length > 256,
        Growth.LAYERS: case.n_layer > 5 and case.length > 32,
        Growth.BATCH: case.batch > 11,
        Growth.ROWS: case.batch > 3 and case.length > 128,
        Growth.CHANNELS: case.n_layer > 1 and case.n_embd == 768,
        # a dozen rows have fewer tokens
        Growth.IDS: (case.length > 64 or case.batch > 11)
        and case.vocab_size >= min(2**15, LARGEST_TABLE_WITH_GRADIENTS // case.n_embd),
    }[growth]


@pytest.mark.parametrize("growths", [*itertools.combinations(Growth, 2)], ids=str)
def test_two_sizes_are_exceeded_at_once(growths):
    for case in (*PINNED[:6], *PADDED[:3]):
        large = grown(case, growths, random.Random(0))
        assert all(has_grown(large, growth) for growth in growths)
        assert large.n_positions - large.length == case.n_positions - case.length


def test_the_laws_of_all_results_meet_two_sizes_at_once():
    assert set(OF_TWO_SIZES) <= set(LAWS)
    met = set()
    for seed in range(40):
        for name in OF_TWO_SIZES:
            case, *others = grown_cases(name, LAWS[name].pinned, seed, 1)
            assert len(others) == MORE_OF_EVERYTHING
            grew = {growth for growth in Growth if has_grown(case, growth)}
            assert len(grew) >= 2
            met.add(frozenset(grew))
    for pair in itertools.combinations(Growth, 2):
        assert any(grew.issuperset(pair) for grew in met)


def test_the_laws_of_a_run_meet_every_growth():
    tried = {
        name: grown_cases(name, law.pinned, 0, 1)
        for name, law in LAWS.items()
        if law.judges is SubjectKind.MODEL and name not in SMALL_BY_NATURE
    }
    for name, cases in tried.items():
        of_one = MORE_OF_EVERYTHING if name in OF_TWO_SIZES else 1
        assert len(cases) == of_one + (name in OF_SEVERAL_SIZES)
    cases = [case for cases in tried.values() for case in cases]
    assert sum(case.length > 256 for case in cases) > len(cases) / 5
    assert sum(case.n_layer > 5 for case in cases) > 3
    assert sum(case.batch > 3 for case in cases) > 3
    assert sum(case.n_embd == 768 for case in cases) > 3
    assert sum(case.vocab_size == MANY_IDS for case in cases) > 3
    assert max(case.vocab_size * case.n_embd for case in cases) <= LARGEST_TABLE
    with_gradients = [case for law in GRADIENTS for case in tried[law]]
    assert max(c.vocab_size * c.n_embd for c in with_gradients) <= LARGEST_TABLE_WITH_GRADIENTS


def test_laws_of_everything_meet_several_layers_rows_and_tokens_together():
    assert set(OF_SEVERAL_SIZES) <= set(LAWS)
    met = set()
    for name in OF_SEVERAL_SIZES:
        for seed in range(5):
            *_, case = grown_cases(name, LAWS[name].pinned, seed, 1)
            sizes = (case.n_layer, case.batch, case.length, case.vocab_size)
            assert all(size >= least for size, least in zip(sizes, (4, 4, 33, 300), strict=True))
            assert case.n_embd == WIDTH
            met.add((case.padding, case.dtype))
    assert met == {(side, torch.float64) for side in (Padding.NONE, Padding.LEFT, Padding.RIGHT)}


def test_some_cases_are_in_float32_where_its_bound_is_narrow():
    law = LAWS["logits-equal-the-oracles"]
    cases = [
        case
        for seed in range(40)
        for case in grown_cases(law.name, law.pinned, seed, 1, float32=True)
    ]
    narrow = [case for case in cases if case.n_layer == 1 and case.n_embd == WIDTH]
    wide = [case for case in cases if case.n_layer > 1 or case.n_embd > WIDTH]
    assert {case.dtype for case in wide} == {torch.float64}
    in_float32 = [case for case in narrow if case.dtype == torch.float32]
    assert len(narrow) / 5 < len(in_float32) < len(narrow) * 3 / 5
    for name in IN_FLOAT64_ALONE:
        cases = grown_cases(name, LAWS[name].pinned, 0, 7, float32=True)
        assert {case.dtype for case in cases} == {torch.float64}


def test_without_float64_every_case_that_may_be_is_in_float32():
    law = LAWS["logits-equal-the-oracles"]
    cases = [
        case
        for seed in range(20)
        for case in grown_cases(law.name, law.pinned, seed, 1, float32=True, float64=False)
    ]
    narrow = [case for case in cases if case.n_layer == 1 and case.n_embd == WIDTH]
    assert {case.dtype for case in narrow} == {torch.float32}


@pytest.mark.parametrize("case", [*PINNED[:6], *PADDED[:3]], ids=str)
def test_no_case_has_more_logits_than_a_worker_can_hold(case):
    for seed, growths in itertools.product(range(20), itertools.combinations(Growth, 2)):
        large = grown(case, growths, random.Random(seed))
        assert large.batch * large.length * large.vocab_size <= LOGITS
    for growth in Growth:
        large = grown(case, [growth], random.Random(0))
        assert large.batch * large.length * large.vocab_size <= LOGITS


class FewChannelsInFloat32(CompactGPT2):
    """In float32, texts of over 512 tokens have scores of the first eight channels."""

    def attend(self, query: torch.Tensor, key: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        if query.dtype == torch.float32 and query.shape[2] > 512:
            query, key = query[..., :8], key[..., :8]
        return super().attend(query, key, *rest)


def test_a_mistake_of_long_texts_in_float32_is_found():
    law = LAWS["logits-equal-the-oracles"]
    large = grown(law.pinned[1], [Growth.TOKENS], random.Random(0)).but(n_layer=1, **IN_FLOAT32)
    with pytest.raises(Violation):
        law.check(implementation("it", FewChannelsInFloat32), large)


def test_more_cases_of_a_law_are_of_other_growths():
    law = LAWS["logits-equal-the-oracles"]
    cases = grown_cases(law.name, law.pinned, 0, 1)
    assert len(cases) == MORE_OF_EVERYTHING + 1
    assert len(set(cases)) == MORE_OF_EVERYTHING + 1


def test_the_gradients_of_deep_models_are_left_out():
    for seed in range(20):
        cases = grown_cases(GRADIENTS[0], LAWS[GRADIENTS[0]].pinned, seed, 1)
        assert max(case.n_layer for case in cases) <= 6
    of_logits = LAWS["logits-equal-the-oracles"].pinned
    deepest = [grown_cases("logits-equal-the-oracles", of_logits, seed, 1) for seed in range(30)]
    assert max(case.n_layer for cases in deepest for case in cases) == 24


def test_the_last_ids_of_a_large_vocabulary_occur():
    case = grown(PINNED[0], [Growth.IDS], random.Random(0))
    ids = draw(case).input_ids
    assert {MANY_IDS - 1, MANY_IDS - 2} <= set(ids.flatten().tolist())


def test_laws_that_stay_small_are_known():
    assert set(SMALL_BY_NATURE) <= set(LAWS)
    for name in SMALL_BY_NATURE:
        assert grown_cases(name, LAWS[name].pinned, 0, 1) == []


class CopiedParameters(CompactGPT2):
    """Of a model of over 64 channels and 42 positions, parameters are copied when it is made."""

    def __init__(self, config: GPT2Config, parameters: Mapping[str, torch.Tensor]) -> None:
        super().__init__(config, parameters)
        self.given = dict(parameters)
        self.is_wide = config.n_embd > 64 and config.n_positions > 42
        if self.is_wide:
            self.copies = {name: each.detach().clone() for name, each in parameters.items()}

    def __call__(self, input_ids: torch.Tensor, *rest: Any, **options: Any) -> Any:
        if self.is_wide and not torch.is_grad_enabled():
            self.parameters = self.copies
        try:
            return super().__call__(input_ids, *rest, **options)
        finally:
            self.parameters = self.given


@pytest.mark.rotating(parts=4)
def test_a_mistake_of_wide_models_alone_is_found():
    law = LAWS["a-change-of-the-parameters-changes-the-next-logits"]
    model = implementation("it", CopiedParameters)
    outcomes = {
        effort: check(law, model, effort, seed=0, repeats=0).outcome
        for effort in (Effort.SMOKE, Effort.STANDARD)
    }
    assert outcomes == {Effort.SMOKE: Outcome.PASSED, Effort.STANDARD: Outcome.FAILED}

"""The workloads of NUM-19: what they call, and what the sample of a call shows."""

from collections import Counter

import pytest
import torch
from basic_claims import BASIC, DTYPES, subject_of

from attnspec.conformance.attention.inputs import draw
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.attention.workloads import ALTERNATIVES, PHASES
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.helpers.sample import Limits, Sample
from attnspec.conformance.laws.numerics import launches
from attnspec.conformance.laws.numerics import workloads as law
from attnspec.conformance.mutants.bases.dense import Dense
from attnspec.spec import (
    Case,
    CausalAlignment,
    Feature,
    Implementation,
    Layout,
    Mask,
    MaskKind,
    Profile,
)


def cases_of(features, seed=1, **options):
    subject = subject_of(features=features, **options)
    return [
        case
        for backward in (False, True)
        for case in law.cases_of_workloads(subject, seed, backward=backward)
    ]


def is_of(phase, case):
    queries, keys = phase.queries, phase.keys or phase.queries
    return (
        queries[0] <= case.queries <= queries[1]
        and keys[0] <= case.keys <= keys[1]
        and case.backward == phase.backward
        and case.is_causal == (phase.is_causal and phase.keys is None)
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_width_of_every_model_is_called_in_each_of_its_phases(seed):
    cases = cases_of(BASIC, seed)
    for phase in PHASES:
        made = {(case.d_head, case.d_value) for case in cases if is_of(phase, case)}
        assert made >= {widths for model in phase.models for widths in model.widths}, phase.name


@pytest.mark.parametrize("seed", range(4))
def test_every_claimed_option_is_called_forward_and_backward(seed):
    names = {
        Feature.WINDOW: "window",
        Feature.SINKS: "sinks",
        Feature.SOFTCAP: "softcap",
        Feature.ALIBI: "alibi",
        Feature.LSE: "return_lse",
        Feature.MASK: "mask",
    }
    cases = cases_of(frozenset(Feature), seed)
    for backward in (False, True):
        called = {
            frozenset(feature for feature, name in names.items() if getattr(case, name))
            for case in cases
            if case.backward is backward
        }
        assert called.issuperset(map(frozenset, ALTERNATIVES))


def test_more_keys_than_queries_come_with_the_causal_flag_if_it_is_aligned_so():
    for alignment in CausalAlignment:
        cases = cases_of(BASIC, profile=Profile(causal_alignment=alignment))
        flags = {case.is_causal for case in cases if case.queries < case.keys and case.keys != 77}
        assert (True in flags) is (alignment is CausalAlignment.LOWER_RIGHT)


def test_known_combinations_are_called_in_every_run():
    for seed in range(4):
        cases = cases_of(BASIC, seed)
        llama = [c for c in cases if c.is_causal and c.heads == 4 * c.kv_heads and c.d_head == 128]
        assert any(c.backward and c.queries > 256 for c in llama)
        assert any(c.queries > 16 and c.keys > 1024 for c in llama)
        for backward in (False, True):
            long = [c for c in cases if c.backward is backward and c.queries > 512]
            assert {64, 96, 128} <= {c.d_head for c in long if c.batch > 1}
        assert any(c.queries == 1 and c.batch > 1 for c in cases)
        assert any(c.layouts.query is Layout.PACKED and c.kv_heads < c.heads for c in cases)
        assert any(c.keys > 2**14 for c in cases)
        assert Counter(c.dtype for c in cases).keys() == set(DTYPES)


def test_masks_of_float32_come_beside_operands_of_16_bits_alone():
    dtypes = (torch.float64, torch.float16, torch.bfloat16)
    cases = cases_of(BASIC | {Feature.MASK}, dtypes=dtypes)
    masked = [case for case in cases if case.mask is not None and case.mask.dtype is not None]
    assert masked
    assert all(torch.finfo(case.dtype).bits == 16 for case in masked)


def test_what_is_not_claimed_is_left_out():
    plain = cases_of(frozenset({Feature.BACKWARD}))
    assert plain
    assert all(case.features <= {Feature.BACKWARD} for case in plain)
    narrow = cases_of(BASIC, supports=lambda case: None if case.d_head <= 128 else "too wide")
    assert narrow
    assert max(case.d_head for case in narrow) == 128
    contiguous = cases_of(
        BASIC, supports=lambda c: None if c.layouts.query is Layout.CONTIGUOUS else "strides"
    )
    assert len(contiguous) == len(cases_of(BASIC))


def test_few_shapes_are_called_if_each_is_compiled():
    implementation = Implementation(
        name="it", attention=Dense(), features=BASIC, compiles_each_shape=True
    )
    subject = Subject(implementation)
    for backward in (False, True):
        cases = law.cases_of_workloads(subject, 0, backward=backward)
        assert len(cases) == sum(phase.backward is backward for phase in PHASES)


def test_the_scalar_definition_is_not_asked():
    subject = subject_of()
    subject.largest = 1000
    assert law.cases_of_workloads(subject, 0, backward=False) == ()


LONG = Case(
    batch=3, heads=8, kv_heads=4, queries=40, keys=50, d_head=4, d_value=4, dtype=torch.float32
)


class LastHeadWrong(Dense):
    def mix(self, weights, value):
        out = super().mix(weights, value)
        factor = torch.ones(out.shape[1])
        factor[-1] = 2
        return out * factor[:, None, None]


def test_a_sample_holds_the_last_head_and_shows_that_it_is_wrong():
    case = LONG.but(seed=3)
    subject = subject_of(LastHeadWrong(), dtypes=(torch.float32,))
    call = subject.draw(case)
    sample = Sample.of(subject, case, call, Limits(numbers=1700, scores=10**9, rows=8))
    assert sample.few.query.shape[:2] == (1, 4)
    assert int(sample.part.heads[-1]) == 7
    with pytest.raises(Violation, match="head 7"):
        sample.check_output(subject, subject.call(call))
    right = subject_of(dtypes=(torch.float32,))
    sample.check_output(right, right.call(call))


class LeakingBatch(Dense):
    def share_heads(self, tensor, heads):
        return super().share_heads(
            tensor + tensor.mean(0, keepdim=True) - tensor.mean(0, keepdim=True).detach(), heads
        )


def test_a_gradient_outside_of_the_sample_is_told():
    case = LONG.but(backward=True)
    for attention, is_right in ((Dense(), True), (LeakingBatch(), False)):
        subject = subject_of(attention, dtypes=(torch.float32,))
        call = subject.draw(case)
        sample = Sample.of(subject, case, call, law.SAMPLE_WITH_GRADIENTS)
        grad = sample.draw_incoming_alone(case, "constant")
        assert grad.shape == (3, 8, 40, 4)
        assert int(grad.sum()) == 2 * 40 * 4
        _, gradients = subject.differentiate(call, grad)
        if is_right:
            sample.check_gradients(subject, gradients, grad)
        else:
            with pytest.raises(Violation):
                sample.check_gradients(subject, gradients, grad)


@pytest.mark.parametrize(
    ("check", "backward"),
    [
        (law.law_calls_of_models_equal_the_definition, False),
        (law.law_gradients_in_training_of_models_equal_the_definition, True),
        (launches.law_the_largest_calls_equal_the_definition, False),
        (launches.law_gradients_of_the_largest_calls_equal_the_definition, True),
    ],
)
def test_a_refused_dtype_of_a_mask_is_no_failure(check, backward):
    def refuses(query, key, value, attn_mask=None, **options):
        raise TypeError(f"no mask in {attn_mask.dtype}")

    subject = subject_of(refuses, features=frozenset(Feature))
    mask = Mask(kind=MaskKind.FLOAT, dtype=torch.float32)
    case = law.PLAIN.but(dtype=torch.float16, mask=mask, backward=backward)
    assert draw(case).attn_mask.dtype == torch.float32
    with pytest.raises(NotClaimed, match="another dtype"):
        check(subject, case)
    with pytest.raises(Raised, match=r"no mask in torch\.float16"):
        check(subject, case.but(mask=Mask(kind=MaskKind.FLOAT)))

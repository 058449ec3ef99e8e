"""The laws of models: their cases, their oracle, and what they say of a wrong model."""

import pytest
import torch
from trying import judged_count, pinned_judged_count

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.comparison.tally import Tally, counting
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.laws.model.sequence import describe_steps
from attnspec.conformance.models.case import PADDED, PINNED, model_cases
from attnspec.conformance.models.oracle import model_oracle
from attnspec.conformance.mutants.bases.gpt2 import COMPACT, CompactGPT2
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations import load, load_model
from attnspec.reference.model import MODEL
from attnspec.spec import (
    Implementation,
    ModelFeature,
    ModelImplementation,
)

LAWS = laws.load()
OF_MODELS = [
    name
    for name, law in LAWS.items()
    if law.judges is SubjectKind.MODEL and not law.clauses[0].startswith("GEN-")
]
INSIDE = LAWS["every-attention-call-inside-gpt2-is-within-its-bound"]


@pytest.mark.rotating(parts=2)
@pytest.mark.parametrize("name", OF_MODELS)
def test_a_law_judges_cases_in_float32(name):
    float32 = (case for case in LAWS[name].pinned if case.dtype == torch.float32)
    assert any(judged_count(LAWS[name], COMPACT, [case]) for case in float32)


def test_the_reference_is_never_its_own_oracle():
    pytest.importorskip("transformers")
    assert model_oracle(MODEL).name == "huggingface_gpt2"
    assert model_oracle(load_model("huggingface_gpt2")) is MODEL
    assert model_oracle(COMPACT) is MODEL


def test_a_dtype_or_configuration_that_is_not_claimed_is_not_judged():
    narrow = ModelImplementation(name="narrow", build=COMPACT.build)
    law = LAWS["logits-equal-the-oracles"]
    with pytest.raises(NotClaimed, match="float64"):
        law.check(narrow, PINNED[0])
    picky = ModelImplementation(
        name="picky", build=COMPACT.build, supports=lambda config: "no relu today"
    )
    with pytest.raises(NotClaimed, match="no relu today"):
        law.check(picky, PINNED[1])


def test_pinned_cases_turn_every_switch():
    configs = [case.config for case in PINNED]
    for name in ("scale_attn_weights", "tie_word_embeddings", "scale_attn_by_inverse_layer_idx"):
        assert {getattr(each, name) for each in configs} == {True, False}
    assert len({each.activation_function for each in configs}) >= 4
    assert len({each.layer_norm_epsilon for each in configs}) >= 3
    assert any(each.n_inner not in (None, 4 * each.n_embd) for each in configs)
    assert {case.padding for case in PADDED} == {"left", "right", "ends"}


def test_drawn_cases_are_claimed():
    from hypothesis import given, settings

    refusing = ModelImplementation(
        name="tied",
        build=COMPACT.build,
        features=frozenset(ModelFeature),
        supports=lambda config: None if config.tie_word_embeddings else "tied only",
    )

    @settings(max_examples=30, database=None, derandomize=True)
    @given(case=model_cases(refusing))
    def search(case):
        assert case.tied
        assert case.dtype in refusing.dtypes
        assert "n_layer=" in str(case)

    search()


@pytest.mark.parametrize("name", ["eager", "sdpa_math"])
def test_attention_inside_gpt2_is_judged_call_by_call(name):
    count = Tally()
    with counting(count):
        assert pinned_judged_count(INSIDE, Subject(load(name))) > 0
    assert 0 < count.worst <= 1
    assert any("logits in float32" in figure for figure in count.figures)


def test_a_wrong_attention_inside_gpt2_is_caught():
    mutant = mutants.load()["own-model-scale-ignored"]
    assert isinstance(mutant.subject, Implementation)
    with pytest.raises(Violation):
        pinned_judged_count(INSIDE, Subject(mutant.subject))


def claiming(model) -> ModelImplementation:
    return ModelImplementation(
        name="spoiled",
        build=model,
        features=frozenset(ModelFeature),
        dtypes=(torch.float64, torch.float32),
    )


def spoiled(change):
    """Return a correct model whose logits are changed at the end."""

    class Spoiled(CompactGPT2):
        def head(self, x):
            return change(super().head(x))

    return claiming(Spoiled)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda logits: None, "must be a tensor"),
        (lambda logits: logits[..., :-1], "must have shape"),
        (lambda logits: logits[:, -1:], "must have shape"),
        (lambda logits: logits.float(), "must have dtype"),
        (lambda logits: logits * torch.nan, "logits are wrong"),
        (lambda logits: logits * 0, "logits are wrong"),
        (lambda logits: logits + 1e-6, "logits are wrong"),
    ],
    ids=["none", "narrow", "short", "float32", "nan", "zeros", "shifted"],
)
def test_improper_logits_are_rejected_with_their_cause(change, cause):
    with pytest.raises(Violation, match=cause):
        LAWS["logits-equal-the-oracles"].check(spoiled(change), PINNED[2])


def test_a_model_that_raises_is_not_taken_for_a_wrong_one():
    def build(config, weights):
        raise RuntimeError("out of cheese")

    with pytest.raises(Raised, match="out of cheese"):
        LAWS["logits-equal-the-oracles"].check(claiming(build), PINNED[0])


def test_gradients_that_do_not_arrive_are_named():
    law = LAWS["every-gradient-equals-the-oracles"]
    with pytest.raises(Violation, match="carry no gradient"):
        law.check(spoiled(torch.Tensor.detach), law.pinned[0])

    class Frozen(CompactGPT2):
        def places(self, position_ids):
            return super().places(position_ids).detach()

    with pytest.raises(Violation, match=r"no gradient reaches transformer\.wpe\.weight"):
        law.check(claiming(Frozen), law.pinned[0])


def test_gradients_are_read_from_parameters_if_weights_were_copied():
    class Copied(torch.nn.Module):
        def __init__(self, config, weights):
            super().__init__()
            self.flat = torch.nn.ParameterDict(
                {name.replace(".", "/"): each.detach().clone() for name, each in weights.items()}
            )
            self.model = CompactGPT2(config, dict(self.named_parameters()))

        def named_parameters(self, *args, **options):
            for name, each in self.flat.items():
                yield name.replace("/", "."), each

        def forward(self, input_ids, **options):
            return self.model(input_ids, **options)

    law = LAWS["every-gradient-equals-the-oracles"]
    law.check(claiming(Copied), law.pinned[0])


def test_gradients_of_parameters_that_are_held_transposed_are_turned():
    class Transposed(torch.nn.Module):
        """As modules of `torch.nn.Linear` hold their weights."""

        def __init__(self, config, weights):
            super().__init__()
            self.own = {
                name: torch.nn.Parameter((each.mT if ".c_" in name else each).detach().clone())
                for name, each in weights.items()
                if each.dim() == 2
            } | {
                name: torch.nn.Parameter(each.detach().clone())
                for name, each in weights.items()
                if each.dim() != 2
            }
            as_given = {
                name: each.mT if ".c_" in name and each.dim() == 2 else each
                for name, each in self.own.items()
            }
            self.model = CompactGPT2(config, as_given)

        def named_parameters(self, *args, **options):
            yield from self.own.items()

        def forward(self, input_ids, **options):
            return self.model(input_ids, **options)

    law = LAWS["every-gradient-equals-the-oracles"]
    law.check(claiming(Transposed), law.pinned[0])


def test_a_model_without_parameters_that_copies_its_weights_has_no_gradients():
    def build(config, weights):
        copies = {name: each.detach().clone().requires_grad_() for name, each in weights.items()}
        return CompactGPT2(config, copies)

    law = LAWS["every-gradient-equals-the-oracles"]
    with pytest.raises(Violation, match="no gradient reaches the tensors that the model was built"):
        law.check(claiming(build), law.pinned[0])


def test_steps_of_equal_size_are_counted():
    assert describe_steps([1] * 1040) == "1040 steps of 1"
    assert describe_steps([5, 1, 1]) == "1 step of 5 and 2 steps of 1"

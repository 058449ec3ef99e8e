"""The laws of models: right ones pass them, each planted mistake is caught by those it names."""

import pytest
import torch
from trying import pinned_on, said_on

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.model_case import PADDED, PINNED, model_cases
from attnspec.conformance.model_judge import model_oracle
from attnspec.conformance.mutants.gpt2_base import COMPACT, CompactGPT2
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.subject import Raised, Subject
from attnspec.conformance.tally import NotClaimed, Tally, counting
from attnspec.conformance.violation import Violation
from attnspec.implementations import load, load_model
from attnspec.reference.model import MODEL
from attnspec.spec import (
    Clause,
    Implementation,
    ModelFeature,
    ModelImplementation,
    chapter_text,
)
from attnspec.spec.clauses import parse

FAMILIES = {
    "EMB": ("embedding",),
    "LNM": ("layer_norm",),
    "ACT": ("activation",),
    "GPT": ("block", "model"),
}
LAWS = {
    name: each
    for name, each in registered().items()
    if each.clauses[0].partition("-")[0] in FAMILIES
}
OF_MODELS = {name: each for name, each in LAWS.items() if each.judges is Judged.MODEL}
MUTANTS = {
    name: each
    for name, each in planted().items()
    if isinstance(each.subject, ModelImplementation)
    and each.subject.build.__module__.startswith("attnspec.conformance.mutants.model")
}
INSIDE = LAWS["every-attention-call-inside-gpt2-is-within-its-bound"]


@pytest.mark.parametrize("name", OF_MODELS)
def test_the_reference_keeps_the_law(name):
    pytest.importorskip("transformers")
    assert pinned_on(OF_MODELS[name], MODEL) > 0


@pytest.mark.parametrize("name", OF_MODELS)
def test_hugging_face_keeps_the_law(name):
    pytest.importorskip("transformers")
    assert pinned_on(OF_MODELS[name], load_model("huggingface_gpt2")) > 0


@pytest.mark.parametrize("name", OF_MODELS)
def test_what_mutants_are_made_from_keeps_the_law(name):
    assert pinned_on(OF_MODELS[name], COMPACT) > 0


@pytest.mark.parametrize(
    ("mutant", "name"),
    [(mutant, name) for mutant in MUTANTS for name in MUTANTS[mutant].kills],
)
def test_the_mutant_is_caught(mutant, name):
    with pytest.raises(Violation):
        pinned_on(LAWS[name], MUTANTS[mutant].subject)


@pytest.mark.parametrize("name", LAWS)
def test_every_law_has_a_mutant(name):
    assert any(name in mutant.kills for mutant in planted().values())


@pytest.mark.parametrize("name", OF_MODELS)
def test_a_law_tells_something_in_float32_alone(name):
    law = OF_MODELS[name]
    float32 = (case for case in law.pinned if case.dtype == torch.float32)
    assert any(said_on(law, COMPACT, [case]) for case in float32)


@pytest.mark.parametrize("family", FAMILIES)
def test_clauses_and_laws_name_each_other(family):
    chapter: list[Clause] = [
        each for page in FAMILIES[family] for each in parse(page, chapter_text(page))
    ]
    assert [each.id for each in chapter] == [f"{family}-{n + 1}" for n in range(len(chapter))]
    for each in chapter:
        assert each.held_by
        for name in each.held_by:
            assert each.id in LAWS[name.removeprefix("law_").replace("_", "-")].clauses
    said = {name for each in chapter for name in each.held_by}
    for name, law in LAWS.items():
        if law.clauses[0].startswith(family):
            assert f"law_{name.replace('-', '_')}" in said
            assert law.sentence.startswith(f"{law.clauses[0]}: ")


def test_the_reference_is_never_its_own_oracle():
    pytest.importorskip("transformers")
    assert model_oracle(MODEL).name == "huggingface_gpt2"
    assert model_oracle(load_model("huggingface_gpt2")) is MODEL
    assert model_oracle(COMPACT) is MODEL


def test_a_dtype_or_configuration_that_is_not_claimed_is_not_judged():
    narrow = ModelImplementation(name="narrow", build=COMPACT.build)
    law = OF_MODELS["logits-equal-the-oracles"]
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
    assert {case.padding for case in PADDED} == {"left", "right"}


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
        assert pinned_on(INSIDE, Subject(load(name))) > 0
    assert 0 < count.worst <= 1
    assert any("logits in float32" in figure for figure in count.figures)


def test_a_wrong_attention_inside_gpt2_is_caught():
    mutant = planted()["own-model-scale-ignored"]
    assert isinstance(mutant.subject, Implementation)
    with pytest.raises(Violation):
        pinned_on(INSIDE, Subject(mutant.subject))


def claiming(model) -> ModelImplementation:
    return ModelImplementation(
        name="spoiled",
        build=model,
        features=frozenset(ModelFeature),
        dtypes=(torch.float64, torch.float32),
    )


def spoiled(change):
    """A right model whose logits are changed at the end."""

    class Spoiled(CompactGPT2):
        def head(self, x):
            return change(super().head(x))

    return claiming(Spoiled)


@pytest.mark.parametrize(
    ("change", "told"),
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
def test_logits_that_are_none_are_told_apart(change, told):
    with pytest.raises(Violation, match=told):
        OF_MODELS["logits-equal-the-oracles"].check(spoiled(change), PINNED[2])


def test_a_model_that_raises_is_not_taken_for_a_wrong_one():
    def build(config, weights):
        raise RuntimeError("out of cheese")

    with pytest.raises(Raised, match="out of cheese"):
        OF_MODELS["logits-equal-the-oracles"].check(claiming(build), PINNED[0])


def test_gradients_that_do_not_arrive_are_named():
    law = OF_MODELS["every-gradient-equals-the-oracles"]
    with pytest.raises(Violation, match="carry no gradient"):
        law.check(spoiled(torch.Tensor.detach), law.pinned[0])

    class Frozen(CompactGPT2):
        def places(self, position_ids):
            return super().places(position_ids).detach()

    with pytest.raises(Violation, match=r"no gradient reaches transformer\.wpe\.weight"):
        law.check(claiming(Frozen), law.pinned[0])


def test_gradients_are_read_from_parameters_where_weights_were_copied():
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

    law = OF_MODELS["every-gradient-equals-the-oracles"]
    law.check(claiming(Copied), law.pinned[0])

"""Tests of the diagnosis of a GPT-2: the first stage that diverges, and the likely mutant."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from attnspec.conformance import laws, mutants
from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.diagnosis.diagnose import with_diagnosis
from attnspec.conformance.diagnosis.likeness.models import FEW, likely_model_mutants
from attnspec.conformance.diagnosis.stages.hidden_states import (
    StateComparison,
    combined_with_states,
)
from attnspec.conformance.diagnosis.stages.names import (
    CLAUSES,
    COMPARED_WITH_ITSELF,
    WHOLE_MODEL,
    Divergence,
    Stage,
)
from attnspec.conformance.diagnosis.stages.search import first_divergence
from attnspec.conformance.evidence.mutation.kills import kind_of, likely_ids, stage_of
from attnspec.conformance.laws.law import registered
from attnspec.conformance.mutants.bases.gpt2 import COMPACT
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.implementations import load_model
from attnspec.reference.model import MODEL
from attnspec.spec import ModelFeature, ModelImplementation, all_clauses

laws.load()
mutants.load()


def block(stage, layer=0):
    """Return the name of a stage in a block."""
    return f"block {layer}, {stage}"


def blind(subject):
    """Return the same model with logits only, without hidden states and other features."""
    return replace(subject, name=f"blind_{subject.name}", features=frozenset())


def place(subject):
    """Return the stage that the diagnosis names, or an empty string."""
    divergence = first_divergence(subject)
    return "" if divergence is None else divergence.place


@pytest.mark.parametrize("right", [COMPACT, MODEL], ids=["compact", "reference"])
def test_a_right_model_has_no_diagnosis(right):
    if right is MODEL:
        pytest.importorskip("transformers")
    assert first_divergence(right) is None
    assert likely_model_mutants(right) == []
    assert likely_model_mutants(right, refusals=True) == []


def test_hugging_faces_model_has_no_diagnosis():
    pytest.importorskip("transformers")
    hugging_face = load_model("huggingface_gpt2")
    assert first_divergence(hugging_face) is None
    assert likely_model_mutants(hugging_face) == []


class Written(nn.Module):
    """A plainly written GPT-2, logits only, with some mistakes."""

    def __init__(self, config, weights, mistakes):
        super().__init__()
        self.config, self.mistakes = config, mistakes
        for name, tensor in weights.items():
            self.register_buffer(name.replace(".", "_"), tensor)

    def parameter(self, name):
        return getattr(self, f"transformer_{name.replace('.', '_')}")

    def norm(self, x, name):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased="bessel" in self.mistakes)
        unit = (x - mean) / torch.sqrt(variance + self.config.layer_norm_epsilon)
        return unit * self.parameter(f"{name}.weight") + self.parameter(f"{name}.bias")

    def linear(self, x, name):
        return torch.addmm(
            self.parameter(f"{name}.bias"), x.flatten(0, -2), self.parameter(f"{name}.weight")
        ).view(*x.shape[:-1], -1)

    def forward(self, input_ids):
        batch, length = input_ids.shape
        if length > self.config.n_positions or not (input_ids >= 0).all():
            raise IndexError("no such row")
        x = self.parameter("wte.weight")[input_ids]
        if "positions" not in self.mistakes:
            x = x + self.parameter("wpe.weight")[:length]
        for layer in range(self.config.n_layer):
            own = f"h.{layer}"
            packed = self.linear(self.norm(x, f"{own}.ln_1"), f"{own}.attn.c_attn")
            query, key, value = (
                part.view(batch, length, self.config.n_head, -1).transpose(1, 2)
                for part in packed.split(x.shape[-1], -1)
            )
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            hidden = torch.ones(length, length, dtype=torch.bool).triu(
                2 if "leak" in self.mistakes else 1
            )
            mixed = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
            x = x + self.linear(mixed.transpose(1, 2).reshape(x.shape), f"{own}.attn.c_proj")
            inner = self.linear(self.norm(x, f"{own}.ln_2"), f"{own}.mlp.c_fc")
            approximate = "none" if "gelu" in self.mistakes else "tanh"
            inner = nn.functional.gelu(inner, approximate=approximate)
            x = x + self.linear(inner, f"{own}.mlp.c_proj")
        return self.norm(x, "ln_f") @ self.parameter("wte.weight").T


def written(*mistakes, dtypes=(torch.float32, torch.float64)):
    """Return that model as an implementation with its claims."""

    def refuses(config):
        plain = (
            config.tie_word_embeddings
            and config.activation_function == "gelu_new"
            and config.scale_attn_weights
            and not config.scale_attn_by_inverse_layer_idx
        )
        return None if plain else "not claimed"

    return ModelImplementation(
        name=f"written_{'_'.join(mistakes)}",
        build=lambda config, weights: Written(config, weights, mistakes),
        supports=refuses,
        dtypes=dtypes,
    )


MUTANTS = {
    "positions": "own-no-positions",
    "bessel": "MDL-04",
    "leak": "own-future-leak",
    "gelu": "own-erf-gelu",
}


@pytest.mark.parametrize(
    ("mistake", "stage", "law"),
    [
        ("positions", str(Stage.POSITIONS), "positions-add"),
        ("bessel", block(Stage.FIRST_NORM), "epsilon-is-inside-the-root"),
        ("leak", block(Stage.MASK), "no-logit-depends-on-later-tokens"),
        ("gelu", block(Stage.ACTIVATION), "activation-is-the-tanh-gelu"),
    ],
)
def test_a_broken_model_gets_its_stage_and_its_mutant(mistake, stage, law):
    subject, mutant = written(mistake), MUTANTS[mistake]
    record = check(registered()[law], subject, None)
    assert record.outcome is Outcome.FAILED
    record = with_diagnosis(record, subject)
    assert record.stage.startswith(f"{stage} (in a model of n_layer=")
    assert record.looks_like == (mutant,)
    assert f"first stage that diverges: {stage} (experiment: " in record.message
    assert f"looks like {mutant}, " in record.message
    assert Record.from_json(record.to_json()) == record


def judged(subject, *names):
    """Return the records of some laws, with their diagnosis."""
    return [with_diagnosis(check(registered()[name], subject, None), subject) for name in names]


def test_laws_about_other_stages_are_not_decided_and_the_own_ones_are():
    subject = written("gelu")
    own = judged(subject, "activation-is-the-tanh-gelu", "logits-equal-the-oracles")
    assert {record.outcome for record in own} == {Outcome.FAILED}
    whole_block, gradients = judged(
        subject,
        "the-mlp-reads-the-stream-after-attention",
        "greedy-generation-equals-hugging-faces",
    )
    assert whole_block.outcome is Outcome.NOT_DECIDED
    assert whole_block.reason == "not decided: block 0, MLP: activation is wrong first"
    assert whole_block.stage == ""
    assert gradients.outcome in (Outcome.NOT_DECIDED, Outcome.PASSED)
    causality, batch = judged(
        subject, "no-logit-depends-on-later-tokens", "rows-of-a-batch-are-independent"
    )
    assert causality.outcome is batch.outcome is Outcome.PASSED


def test_a_law_that_compares_a_model_with_itself_is_always_decided():
    (leak,) = judged(written("positions", "leak"), "no-logit-depends-on-later-tokens")
    assert leak.outcome is Outcome.FAILED
    assert leak.stage.startswith(f"{Stage.POSITIONS} (in a model of n_layer=1")


def test_a_model_with_dropout_breaks_one_clause_and_nothing_else_is_decided():
    subject = planted()["own-dropout-in-evaluation"].subject
    calls, rows, token = judged(
        subject,
        "equal-calls-give-equal-logits",
        "rows-of-a-batch-are-independent",
        "each-token-selects-its-row",
    )
    assert calls.outcome in (Outcome.FAILED, Outcome.FLAKY)
    assert "is dropout on?" in calls.reason
    for record in (rows, token):
        assert record.outcome is Outcome.NOT_DECIDED
        assert "is dropout on?" in record.reason


def test_every_stage_has_clauses_and_every_clause_exists():
    assert set(CLAUSES) == set(Stage)
    named = WHOLE_MODEL.union(COMPARED_WITH_ITSELF, *CLAUSES.values())
    assert named <= set(all_clauses())
    divergence = Divergence(stage=Stage.ACTIVATION, layer=0, experiment="none")
    assert divergence.decides(["ACT-4"])
    assert divergence.decides(["GPT-11", "NUM-16"])
    assert not divergence.decides(["LNM-1"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_three_mistakes_are_found_one_after_another(dtype):
    mistakes = ["positions", "leak", "gelu"]
    places = []
    while mistakes:
        subject = written(*mistakes, dtypes=(dtype,))
        places.append(place(subject))
        # in float32 the bound may hide the smaller of two mistakes
        mutants = {mutant.id for mutant in likely_model_mutants(subject)}
        assert mutants <= {MUTANTS[mistake] for mistake in mistakes}
        mistakes.pop(0)
    assert places == [str(Stage.POSITIONS), block(Stage.MASK), block(Stage.ACTIVATION)]
    right = written(dtypes=(dtype,))
    assert first_divergence(right) is None
    assert likely_model_mutants(right) == []


@pytest.mark.parametrize("output", ["raises", "none", "nan", "narrow", "random"])
def test_a_model_without_valid_logits_has_no_diagnosis(output):
    def build(config, weights):
        def model(input_ids):
            logits = torch.zeros(*input_ids.shape, config.vocab_size)
            if output == "raises":
                raise RuntimeError("no")
            return {
                "none": None,
                "nan": logits * torch.nan,
                "narrow": logits[..., :-1],
                "random": torch.rand_like(logits),
            }[output]

        return model

    subject = ModelImplementation(name=output, build=build)
    assert first_divergence(subject) is None
    assert likely_model_mutants(subject) == []


def test_a_model_of_zeros_is_wrong_in_the_final_norm():
    subject = ModelImplementation(
        name="zeros",
        build=lambda config, weights: (
            lambda input_ids: torch.zeros(*input_ids.shape, config.vocab_size)
        ),
    )
    assert place(subject) == str(Stage.FINAL_NORM)


def test_a_missing_refusal_has_no_stage():
    mutant = planted()["own-positions-clamped"]
    both = replace(planted()["MDL-04"].subject, name="both")
    record = Record(
        subject="both",
        law="a-sequence-longer-than-the-positions-is-an-error",
        clauses=("EMB-4",),
        outcome=Outcome.FAILED,
    )
    assert with_diagnosis(record, both).stage == ""
    assert with_diagnosis(record, both).looks_like == ()
    assert with_diagnosis(record, mutant.subject).looks_like == (mutant.id,)


def test_the_record_of_a_passed_or_slow_law_is_unchanged():
    subject = planted()["MDL-04"].subject
    record = Record(subject="s", law="l", clauses=("GPT-1",), outcome=Outcome.PASSED)
    assert with_diagnosis(record, subject) is record
    slow = replace(record, outcome=Outcome.FAILED, seconds={"total": 1000.0})
    assert with_diagnosis(slow, subject) is slow


def test_more_than_a_few_are_not_named():
    mutant = planted()["MDL-04"]
    copies = [replace(mutant, id=f"copy-{number}") for number in range(FEW + 1)]
    assert len(likely_model_mutants(mutant.subject, among=copies[:FEW])) == FEW
    assert likely_model_mutants(mutant.subject, among=copies) == []


def test_a_trial_of_mutation_testing_has_stage_and_likeness():
    mutant = planted()["own-future-leak"]
    assert stage_of(mutant) == block(Stage.MASK)
    assert stage_of(planted()["own-mask-polarity"]) == ""
    law = registered()[mutant.killed_by]
    record = check(law, mutant.subject, None)
    assert likely_ids(mutant, mutant.subject, law, record) == ((mutant.id,), ())
    # neither tokenizers nor attentions that raised are diagnosed
    other = next(
        mutant for mutant in planted().values() if kind_of(mutant) is SubjectKind.TOKENIZER
    )
    assert likely_ids(other, other.subject, law, record) == ((), ())
    errored = replace(record, outcome=Outcome.ERRORED)
    attention = planted()["own-mask-polarity"]
    assert likely_ids(attention, Subject(attention.subject), law, errored) == ((), ())


def test_a_subject_without_a_hash_is_diagnosed():
    @dataclass
    class Builder:
        """A builder that compares by value, so that it has no hash."""

        build: object

        def __call__(self, config, weights):
            return self.build(config, weights)

    mutant = planted()["own-epsilon-outside"].subject
    subject = replace(mutant, build=Builder(mutant.build))
    with pytest.raises(TypeError, match="unhashable"):
        hash(subject)
    assert place(subject) == place(mutant) != ""
    assert likely_model_mutants(subject) == likely_model_mutants(mutant) != []


class TestStates:
    """Tests of correcting the result of the experiments by hidden states."""

    RIGHT = StateComparison(None, 2, True)

    def test_they_decide_if_no_experiment_fails(self):
        assert combined_with_states(None, [self.RIGHT, None]) is None
        assert combined_with_states(None, [StateComparison(0, 2, False)]).stage is Stage.EMBEDDING
        assert combined_with_states(None, [StateComparison(1, 2, False)]).place == block(
            Stage.BLOCK
        )
        assert combined_with_states(None, [StateComparison(2, 2, False)]) is None
        assert combined_with_states(None, [StateComparison(0, 2, True)]).stage is Stage.STATES
        assert combined_with_states(None, [StateComparison(None, 2, False)]).stage is Stage.HEAD

    def test_they_overrule_a_later_stage_and_keep_an_earlier_one(self):
        mask = Divergence(stage=Stage.MASK, layer=1, experiment="")
        assert combined_with_states(mask, [StateComparison(2, 3, False)]) is mask
        assert combined_with_states(mask, [StateComparison(1, 3, False)]).place == block(
            Stage.BLOCK
        )
        assert combined_with_states(mask, [StateComparison(0, 3, False)]).stage is Stage.EMBEDDING
        assert combined_with_states(mask, [self.RIGHT]) is mask

    def test_they_are_compared_if_the_model_claims_them(self):
        late = planted()["own-hidden-states-late"].subject
        assert ModelFeature.HIDDEN_STATES in late.features
        assert place(late) == str(Stage.STATES)
        assert place(blind(late)) == ""

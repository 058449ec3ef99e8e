"""The diagnosis of a broken GPT-2: the stage that diverges first, and the bug that it is like."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check
from attnspec.conformance.diagnosis import diagnosed
from attnspec.conformance.kills import _likeness, _stage, kind_of
from attnspec.conformance.law import Judged, registered
from attnspec.conformance.model_likeness import FEW, model_resembles
from attnspec.conformance.model_stage import diverges
from attnspec.conformance.model_stage_bench import alike
from attnspec.conformance.model_stage_names import Finding, Stage
from attnspec.conformance.model_stage_states import States, with_states
from attnspec.conformance.mutants.gpt2_base import COMPACT
from attnspec.conformance.mutants.registry import planted
from attnspec.conformance.record import Outcome, Record
from attnspec.conformance.subject import Subject
from attnspec.implementations import load_model
from attnspec.reference.model import MODEL
from attnspec.spec import ModelFeature, ModelImplementation


def block(stage, layer=0):
    """The name of a stage in a block."""
    return f"block {layer}, {stage}"


def blind(subject):
    """The same model without hidden states, or anything else beside logits."""
    return replace(subject, name=f"blind_{subject.name}", features=frozenset())


def place(subject):
    """The stage that is named, or nothing."""
    found = diverges(subject)
    return "" if found is None else found.place


@pytest.mark.parametrize("right", [COMPACT, MODEL], ids=["compact", "reference"])
def test_nothing_is_said_of_a_right_model(right):
    if right is MODEL:
        pytest.importorskip("transformers")
    assert diverges(right) is None
    assert model_resembles(right) == []
    assert model_resembles(right, refusals=True) == []


def test_nothing_is_said_of_hugging_faces():
    pytest.importorskip("transformers")
    hugging_face = load_model("huggingface_gpt2")
    assert diverges(hugging_face) is None
    assert model_resembles(hugging_face) == []


class Written(nn.Module):
    """GPT-2 as anyone writes it, logits only, with some mistakes."""

    def __init__(self, config, weights, mistakes):
        super().__init__()
        self.config, self.mistakes = config, mistakes
        for name, each in weights.items():
            self.register_buffer(name.replace(".", "_"), each)

    def of(self, name):
        return getattr(self, f"transformer_{name.replace('.', '_')}")

    def norm(self, x, name):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased="bessel" in self.mistakes)
        unit = (x - mean) / torch.sqrt(variance + self.config.layer_norm_epsilon)
        return unit * self.of(f"{name}.weight") + self.of(f"{name}.bias")

    def linear(self, x, name):
        return torch.addmm(
            self.of(f"{name}.bias"), x.flatten(0, -2), self.of(f"{name}.weight")
        ).view(*x.shape[:-1], -1)

    def forward(self, input_ids):
        batch, length = input_ids.shape
        if length > self.config.n_positions or not (input_ids >= 0).all():
            raise IndexError("no such row")
        x = self.of("wte.weight")[input_ids]
        if "positions" not in self.mistakes:
            x = x + self.of("wpe.weight")[:length]
        for layer in range(self.config.n_layer):
            own = f"h.{layer}"
            packed = self.linear(self.norm(x, f"{own}.ln_1"), f"{own}.attn.c_attn")
            query, key, value = (
                each.view(batch, length, self.config.n_head, -1).transpose(1, 2)
                for each in packed.split(x.shape[-1], -1)
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
        return self.norm(x, "ln_f") @ self.of("wte.weight").T


def written(*mistakes, dtypes=(torch.float32, torch.float64)):
    """That model, and what it claims."""

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


BUGS = {
    "positions": "own-no-positions",
    "bessel": "MDL-04",
    "leak": "own-future-leak",
    "gelu": "own-erf-gelu",
}


@pytest.mark.parametrize(
    ("mistake", "stage", "law"),
    [
        ("positions", str(Stage.POSITIONS), "positions-add"),
        ("bessel", block(Stage.FIRST_NORM), "epsilon-stands-inside-the-root"),
        ("leak", block(Stage.MASK), "no-logit-depends-on-later-tokens"),
        ("gelu", block(Stage.ACTIVATION), "activation-is-the-tanh-gelu"),
    ],
)
def test_somebody_elses_model_is_told_its_stage_and_its_bug(mistake, stage, law):
    subject, bug = written(mistake), BUGS[mistake]
    record = check(registered()[law], subject, None)
    assert record.outcome is Outcome.FAILED
    told = diagnosed(record, subject)
    assert told.stage == stage
    assert told.looks_like == (bug,)
    assert f"first stage that diverges: {stage} (experiment: " in told.message
    assert f"looks like {bug}, " in told.message
    assert Record.from_json(told.to_json()) == told


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_three_mistakes_are_found_one_after_another(dtype):
    mistakes = ["positions", "leak", "gelu"]
    found = []
    while mistakes:
        subject = written(*mistakes, dtypes=(dtype,))
        found.append(place(subject))
        # in float32 the bound may hide the smaller of two mistakes
        assert {each.id for each in model_resembles(subject)} <= {BUGS[each] for each in mistakes}
        mistakes.pop(0)
    assert found == [str(Stage.POSITIONS), block(Stage.MASK), block(Stage.ACTIVATION)]
    right = written(dtypes=(dtype,))
    assert diverges(right) is None
    assert model_resembles(right) == []


@pytest.mark.parametrize("answer", ["raises", "none", "nan", "narrow", "random"])
def test_nothing_is_said_of_what_cannot_be_measured(answer):
    def build(config, weights):
        def model(input_ids):
            logits = torch.zeros(*input_ids.shape, config.vocab_size)
            if answer == "raises":
                raise RuntimeError("no")
            return {
                "none": None,
                "nan": logits * torch.nan,
                "narrow": logits[..., :-1],
                "random": torch.rand_like(logits),
            }[answer]

        return model

    subject = ModelImplementation(name=answer, build=build)
    assert diverges(subject) is None
    assert model_resembles(subject) == []


def test_a_model_of_zeros_is_wrong_in_the_head_or_before_it():
    subject = ModelImplementation(
        name="zeros",
        build=lambda config, weights: (
            lambda input_ids: torch.zeros(*input_ids.shape, config.vocab_size)
        ),
    )
    assert place(subject) == str(Stage.FINAL_NORM)


def test_a_refusal_is_explained_by_no_stage():
    bug = planted()["own-positions-clamped"]
    both = replace(planted()["MDL-04"].subject, name="both")
    record = Record(
        subject="both",
        law="a-sequence-longer-than-the-positions-is-an-error",
        clauses=("EMB-4",),
        outcome=Outcome.FAILED,
    )
    assert diagnosed(record, both).stage == ""
    assert diagnosed(record, both).looks_like == ()
    assert diagnosed(record, bug.subject).looks_like == (bug.id,)


def test_a_record_that_passed_or_took_too_long_is_left_alone():
    subject = planted()["MDL-04"].subject
    record = Record(subject="s", law="l", clauses=("GPT-1",), outcome=Outcome.PASSED)
    assert diagnosed(record, subject) is record
    slow = replace(record, outcome=Outcome.FAILED, seconds={"total": 1000.0})
    assert diagnosed(slow, subject) is slow


def test_more_than_a_few_are_not_named():
    bug = planted()["MDL-04"]
    copies = [replace(bug, id=f"copy-{number}") for number in range(FEW + 1)]
    assert len(model_resembles(bug.subject, among=copies[:FEW])) == FEW
    assert model_resembles(bug.subject, among=copies) == []


def test_a_trial_of_the_suite_tells_stage_and_likeness():
    bug = planted()["own-future-leak"]
    assert _stage(bug) == block(Stage.MASK)
    assert _stage(planted()["own-mask-polarity"]) == ""
    law = registered()[bug.kills[0]]
    record = check(law, bug.subject, None)
    assert _likeness(bug, bug.subject, law, record) == ((bug.id,), ())
    # nothing is compared with a tokenizer, and nothing that raised with an attention
    other = next(each for each in planted().values() if kind_of(each) is Judged.TOKENIZER)
    assert _likeness(other, other.subject, law, record) == ((), ())
    errored = replace(record, outcome=Outcome.ERRORED)
    attention = planted()["own-mask-polarity"]
    assert _likeness(attention, Subject(attention.subject), law, errored) == ((), ())


def test_readings_that_are_nan_or_far_are_not_alike():
    one, slack = torch.ones(2, 3), torch.full((2, 3), 1e-6)
    assert alike(one, one + 5e-7, slack)
    assert not alike(one, one + torch.tensor([0.0, 0.0, 1e-5]), slack)
    assert not alike(one, one * torch.nan, slack)
    assert not alike(one, one * torch.inf, slack)


class TestStates:
    """What hidden states add to what the experiments found."""

    RIGHT = States(None, 2, True)

    def test_they_speak_where_no_experiment_does(self):
        assert with_states(None, [self.RIGHT, None]) is None
        assert with_states(None, [States(0, 2, False)]).stage is Stage.EMBEDDING
        assert with_states(None, [States(1, 2, False)]).place == block(Stage.BLOCK)
        assert with_states(None, [States(2, 2, False)]) is None
        assert with_states(None, [States(0, 2, True)]).stage is Stage.STATES
        assert with_states(None, [States(None, 2, False)]).stage is Stage.HEAD

    def test_they_overrule_a_later_stage_and_leave_an_earlier_one(self):
        mask = Finding(stage=Stage.MASK, layer=1, experiment="")
        assert with_states(mask, [States(2, 3, False)]) is mask
        assert with_states(mask, [States(1, 3, False)]).place == block(Stage.BLOCK)
        assert with_states(mask, [States(0, 3, False)]).stage is Stage.EMBEDDING
        assert with_states(mask, [self.RIGHT]) is mask

    def test_they_are_asked_of_models_that_claim_them(self):
        late = planted()["own-hidden-states-late"].subject
        assert ModelFeature.HIDDEN_STATES in late.features
        assert place(late) == str(Stage.STATES)
        assert place(blind(late)) == ""

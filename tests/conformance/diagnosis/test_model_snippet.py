"""Tests of the snippets of models: run alone, the code of a failure shows the reported numbers."""

import contextlib
import io

import pytest
import torch

from attnspec.conformance import laws, mutants
from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.diagnosis.failure.model_snippet import model_snippet
from attnspec.conformance.models.cached import call_with_cache
from attnspec.conformance.models.case import ModelCase, draw
from attnspec.conformance.models.recording import recording, recording_of
from attnspec.conformance.models.subject import build
from attnspec.conformance.mutants.registry import planted
from attnspec.reference.model import MODEL
from attnspec.spec import ModelFeature, ModelImplementation

laws.load()
mutants.load()

MUTANTS = [
    name for name, mutant in planted().items() if isinstance(mutant.subject, ModelImplementation)
]
LINES = 28
"""Lines of the longest snippet, of a law that draws all 16 parameters of a layer."""


def failure_of(subject, law):
    """Return the snippet and the mismatch of the first case on which a law fails, or None."""
    for case in law.pinned:
        with recording() as made:
            try:
                law.check(subject, case)
            except Violation as error:
                return model_snippet(subject, made, error.mismatch, case), error.mismatch
            except Raised:
                return model_snippet(subject, made, None, case), None
            except Exception:
                continue
    return None


def executed(code, subject):
    """Execute code with a build that cannot be imported, and return its names and output."""
    names, printed = {"build": subject.build}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    return names, printed.getvalue()


def numbers_in(value):
    """Return all numbers of a result, or of a gradient."""
    if isinstance(value, torch.Tensor):
        return value.detach().double().flatten().tolist()
    return [number for part in value for number in numbers_in(part)] if value else []


@pytest.mark.rotating(parts=3)
def test_nearly_every_failure_has_a_snippet_that_runs():
    # a law that changes hundreds of parameters has none on its larger cases
    lacking = []
    for name in MUTANTS[::6]:
        mutant = planted()[name]
        failure = failure_of(mutant.subject, laws.load()[mutant.killed_by])
        if failure is None or not failure[0]:
            lacking.append(name)
            continue
        code, mismatch = failure
        assert len(code.splitlines()) <= LINES
        try:
            _, printed = executed(code, mutant.subject)
        except Exception:
            assert mismatch is None  # the failure is that exception
            continue
        assert printed
        if mismatch is not None:
            assert f"expected {mismatch.expected}, got {mismatch.got}" in code
    assert len(lacking) <= len(MUTANTS[::6]) // 10


def broken(**changes):
    """Return a GPT-2 whose logits, and so whose gradients, are off by one part in a hundred."""

    def build(config, weights):
        model = MODEL.build(config, weights)

        class Wrong:
            def __call__(self, input_ids, **options):
                result = model(input_ids, **options)
                return (1.01 * result[0], *result[1:]) if options else 1.01 * result

            def empty_cache(self):
                return model.empty_cache()

        return Wrong()

    features = frozenset({ModelFeature.BACKWARD, ModelFeature.CACHE})
    return ModelImplementation(
        name="broken", build=build, features=features, dtypes=(torch.float64,), **changes
    )


@pytest.mark.parametrize("law", ["logits-equal-the-oracles", "every-gradient-equals-the-oracles"])
def test_a_snippet_gives_the_wrong_number_bit_by_bit(law):
    failure = failure_of(broken(), laws.load()[law])
    assert failure is not None
    code, mismatch = failure
    assert len(code.splitlines()) <= 20
    assert "weights = draw_parameters(config, seed=" in code
    names, printed = executed(code, broken())
    shown = names["out"]
    if "gradient" in law:
        parameter = mismatch.what.removeprefix("gradient of ")
        shown = names["parameters"][parameter].grad
    assert any(f"{number:.9g}" == mismatch.got for number in numbers_in(shown))
    assert "tensor(" in printed


def test_a_snippet_feeds_a_cache_step_by_step():
    with recording() as made:
        inputs = draw(ModelCase(length=3))
        weights = dict(inputs.state_dict)
        weights["transformer.wte.weight"] = weights["transformer.wte.weight"] + 1
        model = build(broken(), inputs.config, weights)
        cache = model.empty_cache()
        for position in range(3):
            ids = inputs.input_ids[:, position : position + 1]
            logits, cache = call_with_cache(model, ids, cache, weights)
    code = model_snippet(broken(), made, None, ModelCase(length=3))
    assert code.count("model(ids, cache=cache)") == 3
    assert "weights['transformer.wte.weight'] = torch.tensor([[" in code
    names, _ = executed(code, broken())
    assert torch.equal(names["out"], logits)


def test_what_a_law_did_not_make_has_no_snippet():
    case = ModelCase()
    with recording() as made:
        pass
    assert model_snippet(MODEL, made, None, case) == ""
    code = model_snippet(MODEL, recording_of(case), None, case)
    assert "load" in code or "import build" in code
    assert executed(code, MODEL)[0]["out"].shape == (1, 2, 5)

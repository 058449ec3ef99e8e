"""Recording: the last models and calls are kept, and no more of large models than fit."""

import torch

from attnspec.conformance.models import recording as recordings
from attnspec.conformance.models.case import PINNED, draw
from attnspec.conformance.models.recording import KEPT, record_call, record_model, recording


def test_the_last_calls_are_kept_with_what_their_models_were_built_from():
    inputs = draw(PINNED[0])
    models = [object(), object()]
    with recording() as made:
        for model in models:
            record_model(model, inputs.config, inputs.state_dict)
        for number in range(KEPT + 3):
            record_call(models[0], inputs.input_ids, {}, number)
    assert [call.result for call in made.calls] == list(range(3, KEPT + 3))
    for model in models:
        assert made.parameters_of(model) == (inputs.config, inputs.state_dict)
    assert made.parameters_of(object()) is None


def test_models_beyond_the_largest_size_are_given_up_with_their_calls(monkeypatch):
    inputs = draw(PINNED[0])
    size = sum(weight.numel() for weight in inputs.state_dict.values())
    monkeypatch.setattr(recordings, "LARGEST", 2 * size)
    models = [object() for _ in range(4)]
    with recording() as made:
        for model in models:
            record_model(model, inputs.config, inputs.state_dict)
            record_call(model, inputs.input_ids, {}, None)
    assert [built[0] for built in made.built] == models[2:]
    assert [call.model for call in made.calls] == models[2:]


def test_the_last_model_is_kept_at_any_size(monkeypatch):
    monkeypatch.setattr(recordings, "LARGEST", 1)
    inputs = draw(PINNED[0])
    with recording() as made:
        record_model(None, inputs.config, inputs.state_dict)
        record_call(None, torch.tensor([[0]]), {}, None)
        record_model(None, inputs.config, inputs.state_dict)
    assert len(made.built) == 1

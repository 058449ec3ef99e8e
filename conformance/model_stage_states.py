"""What the hidden states of a GPT-2 say of where it diverges: between which two it happens."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnspec.conformance.model_arithmetic import Enclosure
from attnspec.conformance.model_bounds import Forward
from attnspec.conformance.model_case import ModelCase, draw
from attnspec.conformance.model_judge import Allowed, ask, build, call, doubled
from attnspec.conformance.model_stage_bench import Bench
from attnspec.conformance.model_stage_names import Finding, Stage
from attnspec.conformance.subject import Raised
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation

CASES = (
    ModelCase(n_layer=2, n_head=2, d_head=3, length=4, n_positions=6, vocab_size=11, seed=1),
    ModelCase(
        n_layer=3, n_head=3, d_head=2, length=5, n_positions=5, vocab_size=7, batch=2, n_inner=5,
        scale_attn_weights=False, layer_norm_epsilon=1e-3, activation_function="gelu", seed=2,
    ),
    ModelCase(
        n_layer=3, n_head=2, d_head=4, length=3, batch=2, tied=False, activation_function="relu",
        scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=0.25, seed=3,
    ),
)  # fmt: skip
"""Models whose hidden states are compared."""


@dataclass(frozen=True)
class States:
    """How the hidden states of one model compare with the oracle's.

    Attributes:
        first: the first that diverges, or `None`.
        last: the one after the final LayerNorm.
        are_logits_right: whether the logits are within their bound.
    """

    first: int | None
    last: int
    are_logits_right: bool


def first_state(bench: Bench, case: ModelCase) -> States | None:
    """Compare the hidden states of one model, each within its bound.

    Returns:
        Nothing where the subject does not claim the case, or hands out no such states.
    """
    inputs = draw(case.but(dtype=bench.dtype))
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    try:
        model = build(bench.subject, config, weights)
        with torch.no_grad():
            _, got = call(model, ids, output_hidden_states=True)
            plain = ask(model, ids, weights)
            expected, due = bench.oracle.build(config, doubled(weights))(
                ids, output_hidden_states=True
            )
        pairs = list(zip(got, due, strict=True))
    except (NotClaimed, Raised, TypeError, ValueError, Violation):
        return None
    if not all(isinstance(one, torch.Tensor) and one.shape == two.shape for one, two in pairs):
        return None
    allowed = Allowed(config, weights, ids)

    def is_within(one: torch.Tensor, two: torch.Tensor, place: int) -> bool:
        def pick(passed: Forward) -> Enclosure:
            return (*passed.hidden_states, passed.logits)[place]

        return bool(((one.double() - two).abs() <= allowed.gate(pick)).all())

    wrong = [place for place, pair in enumerate(pairs) if not is_within(*pair, place)]
    return States(min(wrong, default=None), len(pairs) - 1, is_within(plain, expected, -1))


def with_states(found: Finding | None, told: Sequence[States | None]) -> Finding | None:
    """Hold a finding against the hidden states, and where there is none let them speak.

    Args:
        found: what the experiments found.
        told: what each model's hidden states say.
    """
    late = found is None or found.stage is Stage.FINAL_NORM
    if late and any(each and each.first is None and not each.are_logits_right for each in told):
        return Finding(stage=Stage.HEAD, experiment="random models, whose hidden states are right")
    known = [each for each in told if each is not None and each.first is not None]
    wrong = [each for each in known if not each.are_logits_right]
    if not wrong:
        if found is None and known:
            return Finding(
                stage=Stage.STATES, experiment="random models, whose logits are right all the same"
            )
        return found
    first, last = min((each.first or 0, each.last) for each in wrong)
    if found is not None and first >= _after(found, last):
        return found
    experiment = "the hidden states of random models"
    if first == 0:
        return Finding(stage=Stage.EMBEDDING, experiment=experiment)
    # the last one comes after a block and the final LayerNorm: it does not say which
    if first == last:
        return None
    return Finding(stage=Stage.BLOCK, layer=first - 1, experiment=experiment)


def _after(found: Finding, last: int) -> int:
    """The first hidden state that a stage can spoil."""
    if found.layer is not None:
        return min(found.layer + 1, last)
    return last if found.stage in (Stage.FINAL_NORM, Stage.HEAD, Stage.STATES) else 0

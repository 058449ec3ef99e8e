"""Compare the hidden states of a GPT-2 with the oracle's, to find the block that diverges."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.diagnosis.stages.names import Divergence, Stage
from attnspec.conformance.diagnosis.stages.testbed import Testbed
from attnspec.conformance.models.bounds.enclosure import Enclosure
from attnspec.conformance.models.bounds.forward import Forward
from attnspec.conformance.models.case import ModelCase, draw
from attnspec.conformance.models.oracle import Allowed, in_float64
from attnspec.conformance.models.subject import build, call, logits_of

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
"""The models whose hidden states are compared."""


@dataclass(frozen=True)
class StateComparison:
    """The result of comparing the hidden states of one model with the oracle's.

    Attributes:
        first: index of the first hidden state that diverges, or `None`.
        last: index of the hidden state after the final LayerNorm.
        are_logits_right: whether the logits are within their bound.
    """

    first: int | None
    last: int
    are_logits_right: bool


def compare_states(testbed: Testbed, case: ModelCase) -> StateComparison | None:
    """Compare the hidden states of one model, each within its bound.

    Returns:
        None if the subject does not claim the case, or returns no such states.
    """
    inputs = draw(case.but(dtype=testbed.dtype))
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    try:
        model = build(testbed.subject, config, weights)
        with torch.no_grad():
            _, got = call(model, ids, output_hidden_states=True)
            logits = logits_of(model, ids, weights)
            expected_logits, expected = testbed.oracle.build(config, in_float64(weights))(
                ids, output_hidden_states=True
            )
        pairs = list(zip(got, expected, strict=True))
    except (NotClaimed, Raised, TypeError, ValueError, Violation):
        return None
    if not all(isinstance(one, torch.Tensor) and one.shape == two.shape for one, two in pairs):
        return None
    allowed = Allowed(config, weights, ids)

    def is_within(one: torch.Tensor, two: torch.Tensor, place: int) -> bool:
        def pick(passed: Forward) -> Enclosure:
            return (*passed.hidden_states, passed.logits)[place]

        return bool(((one.double() - two).abs() <= allowed.tolerance(pick)).all())

    wrong = [place for place, pair in enumerate(pairs) if not is_within(*pair, place)]
    are_logits_right = is_within(logits, expected_logits, -1)
    return StateComparison(min(wrong, default=None), len(pairs) - 1, are_logits_right)


def combined_with_states(
    divergence: Divergence | None, states: Sequence[StateComparison | None]
) -> Divergence | None:
    """Correct a divergence by the hidden states, or derive one from them if there is none.

    Args:
        divergence: the result of the experiments.
        states: the comparison of each model's hidden states.

    Returns:
        The divergence of the experiments, unless the hidden states contradict it.
    """
    is_late = divergence is None or divergence.stage is Stage.FINAL_NORM
    known = [each for each in states if each is not None]
    if is_late and any(each.first is None and not each.are_logits_right for each in known):
        return Divergence(
            stage=Stage.HEAD, experiment="random models, whose hidden states are right"
        )
    diverging = [each for each in known if each.first is not None]
    wrong = [each for each in diverging if not each.are_logits_right]
    if not wrong:
        if divergence is None and diverging:
            return Divergence(
                stage=Stage.STATES, experiment="random models, whose logits are right"
            )
        return divergence
    first, last = min((each.first or 0, each.last) for each in wrong)
    if divergence is not None and first >= _first_affected_state(divergence, last):
        return divergence
    experiment = "the hidden states of random models"
    if first == 0:
        return Divergence(stage=Stage.EMBEDDING, experiment=experiment)
    # the last state follows the last block and the final LayerNorm: either may be wrong
    if first == last:
        return None
    return Divergence(stage=Stage.BLOCK, layer=first - 1, experiment=experiment)


def _first_affected_state(divergence: Divergence, last: int) -> int:
    """Return the index of the first hidden state that a stage can affect."""
    if divergence.layer is not None:
        return min(divergence.layer + 1, last)
    return last if divergence.stage in (Stage.FINAL_NORM, Stage.HEAD, Stage.STATES) else 0

"""Find the mutants, i.e. planted bugs, whose outputs agree with a broken GPT-2's.

The subject builds and runs a fixed set of small models, each by one procedure: logits, hidden
states, padding, a cache, gradients, ids without a row, the same tokens twice. On the comparisons
on which the subject is wrong, only mutants with the same outputs are kept, and of these only those
that agree on all other comparisons too. No mutant is named if the subject is right on all of them,
or if too many agree.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from attnspec.conformance import mutants
from attnspec.conformance.attention.memoize import is_hashable, memoize
from attnspec.conformance.comparison.close import agree_but_for_rounding
from attnspec.conformance.diagnosis.likeness.procedures import (
    PROCEDURES,
    Outputs,
    incoming,
    run_procedure,
)
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.models.bounds.backward import gradients
from attnspec.conformance.models.case import ModelCase, ModelInputs, Padding, draw
from attnspec.conformance.models.oracle import Allowed, model_oracle
from attnspec.conformance.mutants.registry import Mutant
from attnspec.spec import ModelFeature, ModelImplementation

FEW = 3
"""Maximum number of mutants that are named: more would not narrow down the mistake."""

REFUSALS = ("no row", "no position")
"""The procedures that test refusals; the others test arithmetic and say nothing of refusals."""

_PLAIN = ModelCase(n_layer=2, n_head=2, d_head=3, length=4, n_positions=6, vocab_size=11, seed=1)
_WIDE = ModelCase(
    n_layer=3, n_head=3, d_head=2, length=5, n_positions=8, vocab_size=7, batch=2, n_inner=5,
    scale_attn_weights=False, layer_norm_epsilon=1e-3, activation_function="gelu", seed=2,
)  # fmt: skip
_UNTIED = ModelCase(
    n_layer=3, n_head=2, d_head=4, length=3, batch=2, tied=False, activation_function="relu",
    scale_attn_by_inverse_layer_idx=True, layer_norm_epsilon=0.25, seed=3,
)  # fmt: skip
_SQUARE = _PLAIN.but(n_layer=1, n_inner=6, batch=3, seed=4)


@dataclass(frozen=True)
class ModelComparison:
    """A procedure on one model, by which a subject is compared with mutants."""

    procedure: str
    case: ModelCase

    @property
    def needs(self) -> frozenset[ModelFeature]:
        """The features that the procedure uses."""
        return PROCEDURES[self.procedure].needs


COMPARISONS = (
    *(ModelComparison("logits", case) for case in (_PLAIN, _WIDE, _UNTIED, _SQUARE)),
    ModelComparison("logits", _PLAIN.but(n_layer=1, length=1, n_positions=1, seed=5)),
    ModelComparison("logits", _PLAIN.but(activation_function="silu", seed=6)),
    ModelComparison("far rows", _PLAIN.but(n_layer=1, seed=7)),
    ModelComparison("large scores", _PLAIN.but(n_layer=1, length=5, seed=8)),
    ModelComparison("large activations", _PLAIN.but(n_layer=1, seed=9)),
    ModelComparison("no row", _PLAIN),
    ModelComparison("twice", _WIDE.but(seed=10)),
    ModelComparison("same weights", _PLAIN.but(seed=11)),
    ModelComparison("states", _WIDE.but(seed=12)),
    ModelComparison("padded", _PLAIN.but(batch=3, padding=Padding.LEFT, seed=13)),
    ModelComparison("padded", _WIDE.but(batch=3, padding=Padding.RIGHT, seed=14)),
    ModelComparison("padded states", _PLAIN.but(batch=3, padding=Padding.LEFT, seed=21)),
    ModelComparison("placed", _PLAIN.but(seed=20)),
    ModelComparison("no position", _PLAIN),
    ModelComparison("cached", _PLAIN.but(length=5, seed=15)),
    ModelComparison("cached", _WIDE.but(seed=16)),
    ModelComparison(
        "padded and cached", _PLAIN.but(batch=3, length=5, padding=Padding.LEFT, seed=17)
    ),
    ModelComparison("gradients", _PLAIN.but(batch=2, seed=18)),
    ModelComparison("gradients", _UNTIED.but(n_layer=1, seed=19)),
    ModelComparison("padded gradients", _PLAIN.but(batch=3, padding=Padding.LEFT, seed=22)),
)
"""All comparisons, the plainest first."""


def likely_model_mutants(
    subject: ModelImplementation,
    *,
    refusals: bool = False,
    among: Sequence[Mutant] | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Mutant]:
    """Return the mutants whose outputs agree with a model's, if there are few.

    Args:
        subject: a model that broke a law.
        refusals: if true, compare refusals only, for a law about refusals; if false, compare
            everything else.
        among: the mutants to consider; `None` for all.
        without: ids of mutants to leave out.

    Returns:
        At most `FEW` mutants; an empty list if more agree.
    """
    finest = max(subject.dtypes, key=lambda dtype: torch.finfo(dtype).bits)
    if finest not in (torch.float64, torch.float32):
        return []
    agreeing = [
        mutant
        for mutant in (mutants.load().values() if among is None else among)
        if isinstance(mutant.subject, ModelImplementation) and mutant.id not in without
    ]
    comparisons = [
        ModelComparison(each.procedure, each.case.but(dtype=finest))
        for each in COMPARISONS
        if (each.procedure in REFUSALS) is refusals
        and each.needs <= subject.features
        and subject.supports(each.case.config) is None
    ]
    outputs = {each: _outputs_of(subject, each) for each in comparisons}
    wrong = [
        each for each in comparisons if not _agree(outputs[each], _expected(subject, each), each)
    ]
    if not wrong:
        return []
    for comparison in (*wrong, *(each for each in comparisons if each not in wrong)):
        if not agreeing:
            break
        agreeing = [
            mutant
            for mutant in agreeing
            if _agree(outputs[comparison], _outputs_of(mutant.subject, comparison), comparison)
        ]
    return agreeing if len(agreeing) <= FEW else []


def _run(subject: ModelImplementation, comparison: ModelComparison) -> Outputs:
    """Run a comparison with a fixed seed, so that models with dropout are comparable."""
    with restored_state():
        torch.manual_seed(0)
        return run_procedure(subject, comparison.procedure, _inputs(comparison))


_outputs_of = memoize(_run, kept=4096, where=is_hashable)


def _expected(subject: ModelImplementation, comparison: ModelComparison) -> Outputs:
    exact = ModelComparison(comparison.procedure, comparison.case.but(dtype=_EXACT))
    return _outputs_of(model_oracle(subject), exact)


_EXACT = torch.float64


@functools.lru_cache(maxsize=256)
def _inputs(comparison: ModelComparison) -> ModelInputs:
    """Return the model and tokens of a comparison, the same numbers in either dtype."""
    inputs = draw(comparison.case.but(dtype=torch.float32))
    weights = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    PROCEDURES[comparison.procedure].prepare(weights)
    return ModelInputs(
        config=inputs.config,
        state_dict={name: tensor.to(comparison.case.dtype) for name, tensor in weights.items()},
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
    )


@functools.lru_cache(maxsize=256)
def _tolerance(comparison: ModelComparison) -> Callable[[str], float]:
    """Return the largest distance between two right outputs, by name: twice the bound."""
    inputs = _inputs(comparison)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    options = padding if comparison.case.padding is not Padding.NONE else {}
    allowed = Allowed(config, weights, ids, **options)
    tolerances: dict[str, float] = {}
    for place in range(config.n_layer + 1):
        radius = allowed.model.hidden_states[place].radius
        tolerances[f"state {place}"] = 2 * float(radius.amax())
    if comparison.procedure.endswith("gradients"):
        cotangent = incoming(inputs, (*ids.shape, config.vocab_size), bool(options))
        radii: Mapping[str, object] = gradients(
            config,
            weights,
            ids,
            allowed.model,
            cotangent.to(comparison.case.dtype).double(),
            allowed.arithmetic,
            position_ids=options.get("position_ids"),
        )
        for name, gradient in radii.items():
            tolerances[name] = 2 * float(gradient.radius.amax())  # type: ignore[attr-defined]
    logits = 2 * float(allowed.tolerance(lambda passed: passed.logits).amax())
    return lambda name: tolerances.get(name, logits)


def _agree(one: Outputs, two: Outputs, comparison: ModelComparison) -> bool:
    """Return whether two outputs are the same but for rounding."""
    if one.keys() != two.keys():
        return False
    tolerance = _tolerance(comparison)
    return all(_same(one[name], two[name], tolerance(name)) for name in one)


def _same(one: object, two: object, tolerance: float) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
        return agree_but_for_rounding(one, two, tolerance)
    return type(one) is type(two) and one == two

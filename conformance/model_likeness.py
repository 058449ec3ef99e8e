"""Which planted bugs of the catalogue answer as a broken GPT-2 does.

A fixed set of small models is put to the subject, each in one way that a model can be asked:
logits, hidden states, padding, a cache, gradients, ids that have no row, the same tokens twice.
Where the subject is wrong, the mutants that are wrong alike are kept, and then those that agree on
everything else too. Nothing is said where the subject is right on all of them, or too many agree.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from attnspec.conformance.model_case import ModelCase, ModelInputs, Padding, draw, normal
from attnspec.conformance.model_gradients import gradients
from attnspec.conformance.model_judge import Allowed, model_oracle
from attnspec.conformance.model_questions import ASKING, Answer, asked
from attnspec.conformance.mutants.registry import Mutant, planted
from attnspec.conformance.process import restored
from attnspec.spec import ModelFeature, ModelImplementation

FEW = 3
"""More bugs than this are not named: they say nothing."""

REFUSALS = ("no row", "no position")
"""Ways of asking that say nothing of how a model reckons, nor the other way round."""

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
class Question:
    """One way of asking about one model."""

    way: str
    case: ModelCase

    @property
    def needs(self) -> frozenset[ModelFeature]:
        """The features without which it cannot be asked."""
        return ASKING[self.way].needs


QUESTIONS = (
    *(Question("logits", case) for case in (_PLAIN, _WIDE, _UNTIED, _SQUARE)),
    Question("logits", _PLAIN.but(n_layer=1, length=1, n_positions=1, seed=5)),
    Question("logits", _PLAIN.but(activation_function="silu", seed=6)),
    Question("far rows", _PLAIN.but(n_layer=1, seed=7)),
    Question("large scores", _PLAIN.but(n_layer=1, length=5, seed=8)),
    Question("large activations", _PLAIN.but(n_layer=1, seed=9)),
    Question("no row", _PLAIN),
    Question("twice", _WIDE.but(seed=10)),
    Question("same weights", _PLAIN.but(seed=11)),
    Question("states", _WIDE.but(seed=12)),
    Question("padded", _PLAIN.but(batch=3, padding=Padding.LEFT, seed=13)),
    Question("padded", _WIDE.but(batch=3, padding=Padding.RIGHT, seed=14)),
    Question("no position", _PLAIN),
    Question("cached", _PLAIN.but(length=5, seed=15)),
    Question("cached", _WIDE.but(seed=16)),
    Question("padded and cached", _PLAIN.but(batch=3, length=5, padding=Padding.LEFT, seed=17)),
    Question("gradients", _PLAIN.but(batch=2, seed=18)),
    Question("gradients", _UNTIED.but(n_layer=1, seed=19)),
)
"""What is asked, the plainest first."""


def model_resembles(
    subject: ModelImplementation,
    *,
    refusals: bool = False,
    among: Sequence[Mutant] | None = None,
    without: frozenset[str] = frozenset(),
) -> list[Mutant]:
    """Name the few mutants that answer as a model does.

    Args:
        subject: has broken a law.
        refusals: whether that law is about what is refused; only this, or all but this, is asked.
        among: the mutants that are considered; `None` is all of them.
        without: ids of mutants that are not.

    Returns:
        At most `FEW`, none where nothing, or more, agrees.
    """
    import attnspec.conformance.mutants  # noqa: F401  (registers them)

    finest = max(subject.dtypes, key=lambda each: torch.finfo(each).bits)
    if finest not in (torch.float64, torch.float32):
        return []
    alike = [
        mutant
        for mutant in (planted().values() if among is None else among)
        if isinstance(mutant.subject, ModelImplementation) and mutant.id not in without
    ]
    questions = [
        Question(each.way, each.case.but(dtype=finest))
        for each in QUESTIONS
        if (each.way in REFUSALS) is refusals
        and each.needs <= subject.features
        and subject.supports(each.case.config) is None
    ]
    given = {each: _answer_of(subject, each) for each in questions}
    wrong = [each for each in questions if not _agree(given[each], _due(subject, each), each)]
    if not wrong:
        return []
    for question in (*wrong, *(each for each in questions if each not in wrong)):
        if not alike:
            break
        alike = [
            mutant
            for mutant in alike
            if _agree(given[question], _answer_of(mutant.subject, question), question)
        ]
    return alike if len(alike) <= FEW else []


def _answer(subject: ModelImplementation, question: Question) -> Answer:
    """What a model answers; the same random numbers for each, so that dropout is dropout."""
    with restored():
        torch.manual_seed(0)
        return asked(subject, question.way, _inputs(question))


def _answer_of(subject: ModelImplementation, question: Question) -> Answer:
    """As `_answer`, kept where the subject can be told from others."""
    try:
        hash(subject)
    except TypeError:
        return _answer(subject, question)
    return _kept(subject, question)


@functools.lru_cache(maxsize=4096)
def _kept(subject: ModelImplementation, question: Question) -> Answer:
    return _answer(subject, question)


def _due(subject: ModelImplementation, question: Question) -> Answer:
    return _kept(model_oracle(subject), Question(question.way, question.case.but(dtype=_EXACT)))


_EXACT = torch.float64


@functools.lru_cache(maxsize=256)
def _inputs(question: Question) -> ModelInputs:
    """The model and tokens of a question, the same numbers in either dtype."""
    inputs = draw(question.case.but(dtype=torch.float32))
    weights = {name: each.clone() for name, each in inputs.state_dict.items()}
    ASKING[question.way].prepare(weights)
    return ModelInputs(
        config=inputs.config,
        state_dict={name: each.to(question.case.dtype) for name, each in weights.items()},
        input_ids=inputs.input_ids,
        attention_mask=inputs.attention_mask,
        position_ids=inputs.position_ids,
    )


@functools.lru_cache(maxsize=256)
def _slack(question: Question) -> Callable[[str], float]:
    """How far apart two right answers may lie: each by its bound."""
    inputs = _inputs(question)
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    padding = {"attention_mask": inputs.attention_mask, "position_ids": inputs.position_ids}
    options = padding if question.case.padding is not Padding.NONE else {}
    allowed = Allowed(config, weights, ids, **options)
    found: dict[str, float] = {}
    for place in range(config.n_layer + 1):
        radius = allowed.model.hidden_states[place].radius
        found[f"state {place}"] = 2 * float(radius.amax())
    if question.way == "gradients":
        shape = (*ids.shape, config.vocab_size)
        cotangent = normal(0, "cotangent", *shape).to(question.case.dtype)
        radii: Mapping[str, object] = gradients(
            config, weights, ids, allowed.model, cotangent, allowed.arithmetic
        )
        for name, each in radii.items():
            found[name] = 2 * float(each.radius.amax())  # type: ignore[attr-defined]
    logits = 2 * float(allowed.gate(lambda passed: passed.logits).amax())
    return lambda name: found.get(name, logits)


def _agree(one: Answer, two: Answer, question: Question) -> bool:
    """True where two answers are the same but for rounding."""
    if one.keys() != two.keys():
        return False
    slack = _slack(question)
    return all(_same(one[name], two[name], slack(name)) for name in one)


def _same(one: object, two: object, slack: float) -> bool:
    if not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
        return type(one) is type(two) and one == two
    if one.shape != two.shape:
        return False
    left, right = one.double(), two.double()
    # the bound is that of a right answer: wrong ones are as much farther apart as they are larger
    room = slack * (1 + torch.maximum(left.abs(), right.abs()).nan_to_num(0.0, 0.0, 0.0))
    close = ((left - right).abs() <= room) | (left == right) | (left.isnan() & right.isnan())
    return bool(close.all())

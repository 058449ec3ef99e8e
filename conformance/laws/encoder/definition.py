"""Laws of ENC: every stage of an encoder, what it reads, and in which order."""

from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.bert.case import ACTS, BertCase, cases
from attnspec.conformance.operators.bert.subject import BertSubject
from attnspec.conformance.operators.built_model import AXES
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.padding import SIDES, without_padding

F32 = torch.float32
PINNED = (
    BertCase(length=1, d_head=2, d_inner=1),
    BertCase(),
    BertCase(layers=2, heads=2, batch=2, length=4, seed=1),
    BertCase(layers=2, heads=2, batch=2, length=5, dtype=F32, seed=2),
    BertCase(layers=3, heads=3, d_head=3, d_inner=7, length=6, act="gelu_new", seed=3),
)


def _with(**fixed: Any) -> Any:
    """Return a source of cases with some fields given."""

    def source(subject: BertSubject) -> st.SearchStrategy[BertCase]:
        return cases(subject, **fixed)

    return source


def _judge(subject: BertSubject, case: BertCase, message: str) -> None:
    subject.judge(case, case.draw_parameters(), case.draw(), message)


@law(
    "ENC-1",
    pinned=(
        *(case.but(layers=1, states=True) for case in PINNED),
        BertCase(length=4, typed=True, states=True, seed=4),
    ),
    explore=_with(states=True),
    needs=("hidden_states",),
)
def law_embeddings_are_a_normalized_sum(subject: BertSubject, case: BertCase) -> None:
    """ENC-1: the first state is the LayerNorm of token row plus position row plus type row."""
    weights, inputs = case.draw_parameters(), case.draw()
    message = "the embeddings are not the normalized sum of their rows"
    subject.judge(case, weights, inputs, message, only="state 0")


@law(
    "ENC-2",
    pinned=tuple(case.but(states=True) for case in PINNED),
    explore=_with(states=True),
    needs=("hidden_states",),
)
def law_every_state_of_an_encoder_equals_the_definition(
    subject: BertSubject, case: BertCase
) -> None:
    """ENC-2: each block normalizes after each of its two sums."""
    weights, inputs = case.draw_parameters(), case.draw()
    message = "a hidden state differs from the definition"
    subject.judge(case, weights, inputs, message, only="state")


@law("ENC-3", pinned=PINNED[1:], explore=_with(layers=1, padded=False), cost=2.0)
def law_every_position_reads_the_whole_text(subject: BertSubject, case: BertCase) -> None:
    """ENC-3: no mask hides later tokens: the last one changes every position."""
    weights, inputs = case.draw_parameters(), case.draw()
    ids = inputs["input_ids"].clone()
    ids[:, -1] = (ids[:, -1] + 1) % case.vocab
    for each in (inputs, {**inputs, "input_ids": ids}):
        subject.judge(case, weights, each, "a position does not read the whole text")


def _check_alone(subject: BertSubject, case: BertCase, message: str) -> None:
    """Check that each text gives what it gives alone, at its positions, whatever its padding is."""
    weights, inputs = case.draw_parameters(), case.draw()
    subject.judge(case, weights, inputs, message)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    other = {**inputs, "input_ids": torch.where(mask.bool(), ids, (ids + 1) % case.vocab)}
    got = subject.call(case, weights, other)["logits"].double()
    bound = subject.expect(case, weights, other)["logits"].bound
    table = "bert.embeddings.position_embeddings.weight"
    for text in range(case.batch):
        slots, words, places = without_padding(ids, mask, text, subject.profile.positions)
        rows = weights[table].clone()
        rows[: len(places)] = weights[table][places]
        alone = {name: each[text, slots][None] for name, each in inputs.items()}
        del alone["attention_mask"]
        expected = subject.expect(case, {**weights, table: rows}, {**alone, "input_ids": words})
        check_close(
            got[text, slots],
            expected["logits"].value[0],
            expected["logits"].bound[0] + bound[text, slots],
            what=f"logits of text {text}",
            message=message,
            axes=AXES[1:],
            places={"position": slots},
        )


@law(
    "ENC-4",
    pinned=tuple(
        BertCase(layers=2, heads=2, batch=3, length=length, padded=True, dtype=dtype, seed=seed)
        for seed, length in enumerate((2, 4, 6))
        for dtype in (torch.float64, F32)
    ),
    explore=_with(padded=True, padding_side="right"),
    needs=("padding",),
    cost=4.0,
)
def law_a_padded_token_reaches_nothing(subject: BertSubject, case: BertCase) -> None:
    """ENC-4: each text gives what it gives alone, whatever ids its padding has."""
    _check_alone(subject, case, "padding changes a real position")


@law(
    "ENC-5",
    pinned=tuple(BertCase(act=act, d_inner=16, seed=seed) for seed, act in enumerate(ACTS)),
    explore=_with(layers=1),
)
def law_an_encoder_uses_the_configured_activation(subject: BertSubject, case: BertCase) -> None:
    """ENC-5: `gelu` is the erf form, `gelu_new` the tanh form."""
    _judge(subject, case, f"the activation function is not {case.act}")


@law(
    "ENC-6",
    pinned=tuple(
        BertCase(typed=True, types=types, batch=2, length=4, seed=types) for types in (1, 2, 3)
    ),
    explore=_with(typed=True),
    needs=("token_types",),
)
def law_token_types_add_their_row(subject: BertSubject, case: BertCase) -> None:
    """ENC-6: a token type adds its row; without token types, that of type zero is added."""
    _judge(subject, case, "token types are not added")
    plain = case.but(typed=False)
    _judge(subject, plain, "without token types, the row of type zero is not added")


@law("ENC-7", pinned=PINNED[1:], explore=_with(padded=False), cost=2.0)
def law_a_reversed_text_with_reversed_positions_is_reversed(
    subject: BertSubject, case: BertCase
) -> None:
    """ENC-7: the ids and as many rows of the positions, both reversed, give reversed logits."""
    weights, inputs = case.draw_parameters(), case.draw()
    table = "bert.embeddings.position_embeddings.weight"
    turned = dict(weights)
    turned[table] = weights[table].clone()
    turned[table][: case.length] = weights[table][: case.length].flip(0)
    backwards = {name: each.flip(1) for name, each in inputs.items()}
    _check_moved(
        subject, case, (weights, inputs), (turned, backwards), "a reversed text gives other logits"
    )


def _check_moved(subject: BertSubject, case: BertCase, one: Any, other: Any, message: str) -> None:
    """Check that logits of two calls are each other's reverse."""
    results = []
    for weights, inputs in (one, other):
        allowed = subject.expect(case, weights, inputs)["logits"]
        logits = subject.call(case, weights, inputs)["logits"].double()
        results.append(Allowed(value=logits, bound=allowed.bound))
    check_close(
        results[1].value.flip(1),
        results[0].value,
        results[0].bound + results[1].bound.flip(1),
        what="logits of the reversed text",
        message=message,
        axes=AXES,
    )


@law("ENC-8", pinned=PINNED[1:], explore=_with(padded=False), cost=2.0)
def law_without_positions_the_order_of_tokens_does_not_matter(
    subject: BertSubject, case: BertCase
) -> None:
    """ENC-8: with rows of zeros for the positions, reversed ids give reversed logits."""
    weights, inputs = case.draw_parameters(), case.draw()
    table = "bert.embeddings.position_embeddings.weight"
    flat = {**weights, table: torch.zeros_like(weights[table])}
    backwards = {name: each.flip(1) for name, each in inputs.items()}
    _check_moved(
        subject,
        case,
        (flat, inputs),
        (flat, backwards),
        "without positions the order of the tokens matters",
    )


@law(
    "ENC-9",
    pinned=tuple(case.but(pooled=True) for case in PINNED[1:]),
    explore=_with(pooled=True),
    needs=("pooler",),
)
def law_the_pooler_reads_the_first_position(subject: BertSubject, case: BertCase) -> None:
    """ENC-9: the pooled vector is tanh of a linear map of the first position's last state."""
    _judge(subject, case, "the pooled vectors differ from the definition")


@law("ENC-10", pinned=PINNED, explore=cases)
def law_masked_language_logits_equal_the_definition(subject: BertSubject, case: BertCase) -> None:
    """ENC-10: linear map, activation and LayerNorm precede the tied token table and a bias."""
    _judge(subject, case, "the logits differ from the definition")


@law(
    "ENC-11",
    pinned=tuple(
        BertCase(heads=heads, d_head=d_head, length=5, seed=heads)
        for heads, d_head in ((2, 4), (3, 2), (4, 8))
    ),
    explore=_with(heads=3),
)
def law_heads_of_an_encoder_are_runs_of_channels(subject: BertSubject, case: BertCase) -> None:
    """ENC-11: a head is a run of channels, and its scores are scaled by its own width."""
    _judge(subject, case, f"{case.heads} heads of {case.d_head} channels attend wrongly")


@law(
    "ENC-12",
    pinned=tuple(BertCase(epsilon=epsilon, seed=1) for epsilon in (1e-12, 1e-5, 0.1)),
    explore=_with(epsilon=0.1),
)
def law_an_encoder_adds_the_configured_epsilon(subject: BertSubject, case: BertCase) -> None:
    """ENC-12: every LayerNorm adds the epsilon of the configuration to the variance."""
    _judge(subject, case, f"epsilon is not {case.epsilon:g} in each LayerNorm")


@law("ENC-13", pinned=PINNED[1:3])
def law_an_encoder_leaves_its_parameters_as_they_are(subject: BertSubject, case: BertCase) -> None:
    """ENC-13: to build a model and to call it changes neither parameters nor ids."""
    weights, inputs = case.draw_parameters(), case.draw()
    given = {name: each.clone() for name, each in weights.items()}
    ids = inputs["input_ids"].clone()
    model: Any = subject.implementation.function(case.config, given)
    with torch.no_grad():
        first, second = model(ids), model(ids)
    if not torch.equal(first, second):
        raise Violation("a second call gives another result")
    if not torch.equal(ids, inputs["input_ids"]):
        raise Violation("the ids are written to")
    for name, each in given.items():
        if not torch.equal(each, weights[name]):
            raise Violation(f"{name} is written to")


GRADIENTS = (
    BertCase(layers=1, d_head=4, length=2, epsilon=0.25, backward=True),
    BertCase(heads=2, length=4, epsilon=0.25, batch=2, act="relu", backward=True, seed=1),
    BertCase(layers=2, heads=2, length=5, epsilon=0.25, act="gelu_new", backward=True, seed=2),
    BertCase(length=3, epsilon=0.25, dtype=F32, backward=True, seed=3),
)


@law(
    "ENC-14",
    pinned=(
        *GRADIENTS,
        GRADIENTS[1].but(padded=True, typed=True, length=5, seed=4),
        GRADIENTS[2].but(padded=True, batch=3, seed=5),
    ),
    explore=_with(backward=True, layers=1),
    needs=("gradients",),
    cost=4.0,
)
def law_every_gradient_of_an_encoder_equals_the_definition(
    subject: BertSubject, case: BertCase
) -> None:
    """ENC-14: the gradient of each parameter is right, and sums both uses of the token table."""
    subject.judge_gradients(case)


ANYWHERE = tuple(
    BertCase(
        layers=2,
        heads=2,
        batch=3,
        length=length,
        padded=True,
        padding_side=side,
        typed=is_typed,
        dtype=dtype,
        seed=seed,
    )
    for seed, (length, is_typed) in enumerate(((2, False), (4, True), (6, False)))
    for side in ("left", "anywhere")
    for dtype in (torch.float64, F32)
)


@law(
    "ENC-15",
    pinned=(
        BertCase(batch=2, length=3, padded=True, padding_side="left", seed=1),
        *ANYWHERE,
    ),
    explore=_with(padded=True, padding_side=st.sampled_from(SIDES[1:])),
    needs=("any_padding",),
    cost=4.0,
)
def law_padding_anywhere_leaves_tokens_what_they_have_alone(
    subject: BertSubject, case: BertCase
) -> None:
    """ENC-15: real tokens give what they give alone, with the positions that are declared."""
    _check_alone(subject, case, "padding before or between tokens changes them")


@law(
    "ENC-16",
    pinned=tuple(case.but(layers=1, pooled=True) for case in ANYWHERE),
    explore=_with(pooled=True, padded=True, padding_side=st.sampled_from(SIDES[1:])),
    needs=("any_padding", "pooler"),
)
def law_the_pooler_reads_the_declared_slot_of_a_padded_text(
    subject: BertSubject, case: BertCase
) -> None:
    """ENC-16: a pooler reads the first slot, or the first real token, as is declared."""
    slot = subject.profile.pooler.replace("_", " ")
    weights, inputs = case.draw_parameters(), case.draw()
    message = f"the pooler does not read the {slot}"
    subject.judge(case, weights, inputs, message, only="pooled")

"""Laws of CRS: embeddings, positions, blocks and head of an encoder-decoder."""

from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.built_model import AXES
from attnspec.conformance.operators.encoder_decoder.bounds import enclose_sinusoids
from attnspec.conformance.operators.encoder_decoder.case import (
    ACTS,
    EncoderDecoderCase,
    cases,
    divided,
)
from attnspec.conformance.operators.encoder_decoder.subject import EncoderDecoderSubject
from attnspec.reference.encoder_decoder import rotate_positions

F32 = torch.float32
TWO = EncoderDecoderCase(
    encoder_layers=2,
    decoder_layers=2,
    encoder_heads=2,
    decoder_heads=4,
    d_model=8,
    batch=2,
    source=5,
    target=4,
)
PINNED = (
    EncoderDecoderCase(source=1, target=1, d_model=2, encoder_inner=1),
    EncoderDecoderCase(),
    EncoderDecoderCase(learned=True, scaled=False, act="gelu", seed=1),
    EncoderDecoderCase(encoder_heads=2, decoder_heads=1, dtype=F32, seed=2),
    TWO.but(seed=3),
    TWO.but(learned=True, act="gelu_new", target=7, seed=4),
    TWO.but(encoder_layers=3, dtype=F32, seed=5),
)
"""Cases without masks and without options."""


def source_of(**fixed: Any) -> Any:
    """Return a source of cases with some fields given."""

    def source(subject: EncoderDecoderSubject) -> st.SearchStrategy[EncoderDecoderCase]:
        return cases(subject, **fixed)

    return source


def judge(subject: EncoderDecoderSubject, case: EncoderDecoderCase, message: str) -> None:
    """Check the results of a case against the definition."""
    subject.judge_case(case, message)


@law(
    "CRS-1",
    pinned=(
        *(case.but(states=True) for case in PINNED),
        EncoderDecoderCase(learned=True, states=True, seed=5),
    ),
    explore=source_of(states=True),
    needs=("hidden_states",),
)
def law_embeddings_of_both_sides_are_scaled_rows_plus_positions(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-1: both sides scale the rows of one token table, and add positions from zero on."""
    weights, inputs = case.draw_parameters(), case.draw()
    message = "the embeddings of the {} are not scaled rows plus positions"
    for side in ("encoder", "decoder"):
        subject.judge(case, weights, inputs, message.format(side), only=f"{side} state 0")


def _positions(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of the source that a model adds, and their largest errors.

    A table of zeros leaves nothing else, up to the rounding of a sum with zero.
    """
    weights, inputs = case.draw_parameters(), case.draw()
    weights["model.shared.weight"] = torch.zeros_like(weights["model.shared.weight"])
    got = subject.call(case, weights, inputs, states=True)["encoder state 0"][0]
    arithmetic = Arithmetic.of(case.dtype)
    enclosed = enclose_sinusoids(
        torch.arange(case.source), case.d_model, subject.profile.sinusoids, arithmetic
    )
    # a table is rounded to its storage type, and then once more by the sum
    rounding = 2 * arithmetic.u * enclosed.magnitude + arithmetic.floor
    return got.double(), enclosed.radius + rounding


SINUSOIDAL = tuple(
    EncoderDecoderCase(d_model=width, source=length, states=True, dtype=dtype, seed=width)
    for width, length in ((2, 1), (4, 5), (6, 9), (8, 70))
    for dtype in (torch.float64, F32)
)


@law(
    "CRS-2",
    pinned=SINUSOIDAL,
    explore=source_of(states=True, learned=False),
    needs=("hidden_states", "sinusoidal"),
)
def law_sinusoidal_positions_equal_the_definition(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-2: channel 2i is the sine, and 2i + 1 the cosine, of p / 10000^(2i/d)."""
    subject.demand(case)
    weights, inputs = case.draw_parameters(), case.draw()
    weights["model.shared.weight"] = torch.zeros_like(weights["model.shared.weight"])
    subject.judge(
        case,
        weights,
        inputs,
        "sinusoidal positions differ from the formula",
        only="encoder state 0",
    )


@law(
    "CRS-3",
    pinned=SINUSOIDAL[2:],
    explore=source_of(states=True, learned=False, source=st.integers(2, 9)),
    needs=("hidden_states", "sinusoidal"),
)
def law_a_shift_of_positions_is_a_rotation(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-3: a shift by k turns each pair of sine and cosine by an angle that depends on k alone.

    The rotation adds the errors of both channels of a pair; in float64 it errs itself by the
    error of its angle, which is that of position k, and three roundings.
    """
    rows, radius = _positions(subject, case)
    order = subject.profile.sinusoids
    wide = Arithmetic.of(torch.float64)
    for shift in sorted({1, case.source // 2, case.source - 1} - {0}):
        turned = rotate_positions(rows[:-shift], shift, order)
        own = enclose_sinusoids(torch.tensor([shift]), case.d_model, order, wide).radius.amax()
        before = radius[:-shift]
        pairs = before.amax(-1, keepdim=True) * 2
        check_close(
            rows[shift:][None],
            turned[None],
            (radius[shift:] + pairs + 2 * own + 8 * wide.u)[None],
            what="encoder state 0",
            message=f"a shift of positions by {shift} is no rotation of their channels",
            axes=AXES,
            places={"position": torch.arange(shift, case.source)},
        )


@law(
    "CRS-4",
    pinned=tuple(case.but(states=True) for case in PINNED),
    explore=source_of(states=True),
    needs=("hidden_states",),
)
def law_every_encoder_state_equals_the_definition(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-4: each block of the encoder adds self-attention without a causal mask, and an MLP."""
    weights, inputs = case.draw_parameters(), case.draw()
    message = "a state of the encoder differs from the definition"
    subject.judge(case, weights, inputs, message, only="encoder")


@law(
    "CRS-5",
    pinned=tuple(case.but(states=True) for case in PINNED),
    explore=source_of(states=True),
    needs=("hidden_states",),
)
def law_every_decoder_state_equals_the_definition(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-5: each block of the decoder adds self-attention, cross-attention and an MLP in turn."""
    weights, inputs = case.draw_parameters(), case.draw()
    message = "a state of the decoder differs from the definition"
    subject.judge(case, weights, inputs, message, only="decoder")


@law("CRS-12", pinned=PINNED, explore=cases)
def law_logits_of_a_decoder_equal_the_definition(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-12: the last states are multiplied by the token table, and a bias is added."""
    judge(subject, case, "the logits differ from the definition")


@law(
    "CRS-13",
    pinned=tuple(
        EncoderDecoderCase(
            encoder_heads=heads, decoder_heads=other, d_model=width, source=5, seed=heads
        )
        for width, heads, other in ((4, 2, 1), (8, 2, 4), (12, 3, 2))
    ),
    explore=source_of(**divided(12)),
)
def law_heads_of_each_attention_are_runs_of_channels(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-13: each side has its own number of heads, and scales by the width of a head."""
    count = f"{case.encoder_heads} and {case.decoder_heads} heads"
    judge(subject, case, f"encoder and decoder with {count} attend wrongly")


@law(
    "CRS-14",
    pinned=tuple(
        EncoderDecoderCase(act=act, encoder_inner=16, decoder_inner=16, seed=seed)
        for seed, act in enumerate(ACTS)
    ),
    explore=source_of(encoder_layers=1, decoder_layers=1),
)
def law_both_sides_use_the_configured_activation(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-14: `relu`, `gelu` by erf and `gelu_new` by tanh are three functions."""
    judge(subject, case, f"the activation function is not {case.act}")


PLACES = tuple(
    TWO.but(norm_first=first, final_norm=final, seed=seed)
    for seed, (first, final) in enumerate(((False, False), (True, True), (False, True)))
)


@law(
    "CRS-15",
    pinned=(*PLACES[1:], *(case.but(encoder_layers=1) for case in PLACES)),
    explore=source_of(norm_first=True, final_norm=True),
    needs=("pre_norm", "final_norm"),
)
def law_layer_norms_stand_where_the_configuration_says(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-15: before each branch or after each sum, and after the last block or not."""
    place = "before each branch" if case.norm_first else "after each sum"
    final = "with" if case.final_norm else "without"
    judge(subject, case, f"LayerNorm is not {place}, {final} a final one")


@law(
    "CRS-16",
    pinned=tuple(EncoderDecoderCase(epsilon=epsilon, seed=1) for epsilon in (1e-6, 1e-5, 0.1)),
    explore=source_of(epsilon=0.1),
)
def law_both_sides_add_the_configured_epsilon(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-16: every LayerNorm adds the epsilon of the configuration to the variance."""
    judge(subject, case, f"epsilon is not {case.epsilon:g} in each LayerNorm")


@law("CRS-20", pinned=PINNED[1:3])
def law_an_encoder_decoder_leaves_its_parameters_as_they_are(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-20: to build a model and to call it changes neither parameters nor ids."""
    weights, inputs = case.draw_parameters(), case.draw()
    given = {name: each.clone() for name, each in weights.items()}
    ids = [inputs[name].clone() for name in ("input_ids", "decoder_input_ids")]
    model: Any = subject.implementation.function(case.config, given)
    with torch.no_grad():
        first, second = model(*ids), model(*ids)
    if not torch.equal(first, second):
        raise Violation("a second call gives another result")
    for name, each in zip(("input_ids", "decoder_input_ids"), ids, strict=True):
        if not torch.equal(each, inputs[name]):
            raise Violation(f"{name} is written to")
    for name, each in given.items():
        if not torch.equal(each, weights[name]):
            raise Violation(f"{name} is written to")


_TRAINED = EncoderDecoderCase(scaled=False, epsilon=0.25, backward=True)
GRADIENTS = (
    _TRAINED.but(source=2, target=1, d_model=2, decoder_heads=1),
    _TRAINED.but(norm_first=True, source=2, target=2, dtype=F32, seed=1),
    _TRAINED.but(scaled=True, act="gelu", encoder_heads=2, batch=2, seed=1),
    _TRAINED.but(learned=True, target=5, decoder_layers=2, act="gelu_new", seed=2),
    _TRAINED.but(norm_first=True, final_norm=True, encoder_layers=2, act="gelu", seed=3),
    _TRAINED.but(norm_first=True, learned=True, decoder_layers=2, encoder_layers=2, seed=5),
    _TRAINED.but(padded=True, target_padded=True, batch=3, source=5, target=4, seed=5),
)


@law(
    "CRS-21",
    pinned=GRADIENTS,
    explore=source_of(
        backward=True,
        scaled=False,
        encoder_layers=st.integers(1, 2),
        decoder_layers=st.integers(1, 2),
        epsilon=st.sampled_from([0.25, 1e-5]),
    ),
    needs=("gradients",),
    cost=4.0,
)
def law_every_gradient_of_an_encoder_decoder_equals_the_definition(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-21: the gradient of each parameter is right, summed over all uses of table and source."""
    subject.judge_gradients(case)

"""The encoder-decoder of the reference: equal to Hugging Face's BART and to `nn.Transformer`."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.encoder_decoder.bounds import enclose_sinusoids, forward
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase, drawn_cases
from attnspec.conformance.operators.encoder_decoder.gradients import gradients
from attnspec.implementations.torch_transformer import TorchTransformer
from attnspec.reference.encoder_decoder import build, rotate_positions, sinusoids
from attnspec.spec.encoder_decoder import EncoderDecoderProfile, Sinusoids

MASKS = frozenset({"padding", "target_padding"})
SIDES = frozenset({"any_padding", "any_target_padding"})
BART = drawn_cases(MASKS | SIDES | {"learned"})
ANY = drawn_cases(MASKS | {"learned", "sinusoidal", "pre_norm", "final_norm"})
INTERLEAVED = Sinusoids.INTERLEAVED
PROFILE = EncoderDecoderProfile()


@pytest.fixture(scope="module")
def bart():
    """The function that builds Hugging Face's model."""
    pytest.importorskip("transformers")
    from attnspec.implementations.huggingface_bart import HuggingFaceBart

    return HuggingFaceBart


def real(inputs, name):
    mask = "decoder_attention_mask" if name.startswith(("decoder", "logits")) else "attention_mask"
    ids = inputs["decoder_input_ids" if mask.startswith("decoder") else "input_ids"]
    return inputs.get(mask, torch.ones_like(ids)).bool()


def by_name(output):
    logits, encoded, decoded = output
    result = {f"encoder state {place}": each for place, each in enumerate(encoded)}
    result |= {f"decoder state {place}": each for place, each in enumerate(decoded)}
    return {**result, "logits": logits}


@pytest.mark.rotating(parts=3)
@settings(max_examples=250)
@given(case=BART)
def test_states_and_logits_equal_barts(bart, case):
    weights, inputs = case.draw_parameters(), case.draw()
    mine = by_name(build(case.config, weights)(**inputs, output_hidden_states=True))
    theirs = by_name(bart(case.config, weights)(**inputs, output_hidden_states=True))
    enclosed = forward(case.config, weights, inputs, PROFILE, Arithmetic.of(torch.float64)).results
    assert mine.keys() == theirs.keys() == enclosed.keys()
    for name, value in mine.items():
        near = (value - theirs[name]).abs() <= 2 * enclosed[name].radius
        assert bool(near[real(inputs, name)].all()), name


@pytest.mark.rotating(parts=3)
@settings(max_examples=200)
@given(case=BART, chunk=st.integers(1, 4))
def test_steps_equal_those_of_bart(bart, case, chunk):
    case = case.but(target_padded=False)
    weights, inputs = case.draw_parameters(), case.draw()
    enclosed = forward(case.config, weights, inputs, PROFILE, Arithmetic.of(torch.float64))
    found = []
    for make in (build, bart):
        model, rows = make(case.config, weights), []
        cache = model.start(inputs["input_ids"], attention_mask=inputs.get("attention_mask"))
        for ids in inputs["decoder_input_ids"].split(chunk, dim=1):
            logits, cache = model.step(ids, cache)
            rows.append(logits)
        found.append(torch.cat(rows, dim=1))
    assert bool(((found[0] - found[1]).abs() <= 2 * enclosed.logits.radius).all())


@pytest.mark.rotating(parts=12)
@pytest.mark.parametrize("is_inference", [False, True])
@settings(max_examples=250)
@given(case=ANY)
def test_logits_equal_those_of_the_transformer_of_torch(is_inference, case):
    """In both orders of LayerNorm, in training and on the fast path of inference."""
    weights, inputs = case.draw_parameters(), case.draw()
    mine = build(case.config, weights)(**inputs)
    model = TorchTransformer(case.config, weights)
    model.module.train(not is_inference)
    with torch.set_grad_enabled(not is_inference):
        theirs = model(**inputs)
    enclosed = forward(case.config, weights, inputs, PROFILE, Arithmetic.of(torch.float64))
    near = (mine - theirs).abs() <= 2 * enclosed.logits.radius
    assert bool(near[real(inputs, "logits")].all())


def gradients_of(make, case, weights, inputs):
    leaves = {name: each.clone().requires_grad_() for name, each in weights.items()}
    logits = make(case.config, leaves)(**inputs)
    found = torch.autograd.grad(logits, list(leaves.values()), case.draw_cotangent())
    return dict(zip(leaves, found, strict=True))


def are_near(case, mine, theirs, weights, inputs):
    """Check two gradients of each parameter against the bound, and against its closed forms."""
    arithmetic = Arithmetic.of(torch.float64)
    enclosed = forward(case.config, weights, inputs, PROFILE, arithmetic)
    cotangent = case.draw_cotangent()
    bounds = gradients(case.config, weights, inputs, PROFILE, enclosed, cotangent, arithmetic)
    assert bounds.keys() == mine.keys() == theirs.keys()
    for name, each in bounds.items():
        assert bool(((mine[name] - theirs[name]).abs() <= 2 * each.radius).all()), name
        assert bool(((mine[name] - each.value).abs() <= 2 * each.radius).all()), name


@pytest.mark.rotating(parts=12)
@settings(max_examples=200)
@given(case=BART)
def test_gradients_of_the_parameters_equal_barts(bart, case):
    weights, inputs = case.draw_parameters(), case.draw()
    mine, theirs = (gradients_of(make, case, weights, inputs) for make in (build, bart))
    are_near(case, mine, theirs, weights, inputs)


@pytest.mark.rotating(parts=12)
@settings(max_examples=200)
@given(case=ANY)
def test_gradients_of_the_parameters_equal_those_of_the_transformer_of_torch(case):
    weights, inputs = case.draw_parameters(), case.draw()
    mine, theirs = (gradients_of(make, case, weights, inputs) for make in (build, TorchTransformer))
    are_near(case, mine, theirs, weights, inputs)


@settings(max_examples=200)
@given(
    pairs=st.integers(1, 40),
    shift=st.integers(-50, 50),
    start=st.integers(50, 3000),
    order=st.sampled_from(Sinusoids),
)
def test_a_shift_of_positions_is_a_rotation(pairs, shift, start, order):
    here, width = torch.arange(start, start + 3), 2 * pairs
    rows, there = (sinusoids(place, width, order) for place in (here, here + shift))
    turned = rotate_positions(rows, shift, order)
    arithmetic = Arithmetic.of(torch.float64)
    radii = [
        enclose_sinusoids(place, width, order, arithmetic).radius for place in (here, here + shift)
    ]
    # the rotation adds the errors of both channels, that of its own angle, and three roundings
    own = enclose_sinusoids(torch.tensor([abs(shift)]), width, order, arithmetic).radius
    bound = 2 * radii[0] + radii[1] + 2 * own.amax() + 8 * arithmetic.u + 2 * radii[0].amax()
    assert bool(((turned - there).abs() <= bound).all())


@settings(max_examples=200)
@given(rows=st.integers(1, 300), pairs=st.integers(1, 20))
def test_halves_are_those_of_marian(rows, pairs):
    marian = pytest.importorskip("transformers.models.marian.modeling_marian")
    table = marian.MarianSinusoidalPositionalEmbedding(rows, 2 * pairs).create_weight()
    enclosed = enclose_sinusoids(
        torch.arange(rows), 2 * pairs, Sinusoids.HALVES, Arithmetic.of(torch.float32)
    )
    assert bool(((table.double() - enclosed.value).abs() <= enclosed.radius + 2.0**-24).all())


def test_sinusoids_are_those_of_mpmath():
    """The enclosure holds the exact numbers, and is narrow."""
    from mpmath import cos, mp, mpf, sin

    mp.dps = 50
    places, width = torch.tensor([0, 1, 7, 512, 5000]), 6
    enclosed = enclose_sinusoids(places, width, INTERLEAVED, Arithmetic.of(torch.float64))
    for row, place in enumerate(places.tolist()):
        for channel in range(width):
            angle = place / mpf(10_000) ** (mpf(channel // 2 * 2) / width)
            exact = float((cos if channel % 2 else sin)(angle))
            radius = float(enclosed.radius[row, channel])
            assert abs(float(enclosed.value[row, channel]) - exact) <= radius < 1e-10


def test_a_bound_is_far_below_the_logits():
    for seed in range(5):
        case = EncoderDecoderCase(encoder_layers=2, decoder_layers=2, d_model=8, seed=seed)
        enclosed = forward(
            case.config,
            case.draw_parameters(),
            case.draw(),
            PROFILE,
            Arithmetic.of(torch.float64),
        ).logits
        assert float(enclosed.radius.max()) < 1e-6 * float(enclosed.value.abs().max())

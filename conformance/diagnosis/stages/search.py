"""The first stage of a broken GPT-2 that diverges from the oracle.

Each experiment builds models of which all stages but one are known. Since everything is read
through the head, the head comes first; then the order is that of the forward pass: embeddings,
block 0, block 1, final LayerNorm. The first experiment that fails names the stage. If the subject
returns hidden states, they must not contradict it, and name the block if no experiment fails.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnspec.conformance.attention.memoize import is_hashable, memoize
from attnspec.conformance.comparison.close import agree_but_for_rounding
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.diagnosis.stages.block import divergence_in_block
from attnspec.conformance.diagnosis.stages.hidden_states import (
    CASES,
    combined_with_states,
    compare_states,
)
from attnspec.conformance.diagnosis.stages.names import Divergence, Stage
from attnspec.conformance.diagnosis.stages.testbed import (
    WIDTH,
    Testbed,
    coarse,
    reading_bound,
)
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.models.cached import call_with_cache
from attnspec.conformance.models.case import draw
from attnspec.conformance.models.oracle import Allowed
from attnspec.conformance.models.readout import Readout
from attnspec.conformance.models.subject import build, logits_of
from attnspec.spec import ModelFeature, ModelImplementation

LAYERS = 2
"""Number of blocks that are examined: the second shows effects of the layer's number."""

KEPT = 64
"""Subjects whose divergence is cached: one subject may break many laws."""


def _first_divergence(subject: ModelImplementation) -> Divergence | None:
    """Return the first stage of a model that diverges from its oracle.

    Args:
        subject: a model that broke a law.

    Returns:
        None if the model is not deterministic, raises on plain models, or if no experiment fails:
        then the mistake is in no stage.
    """
    with restored_state():
        try:
            return _search(subject)
        except NotClaimed:
            return None


def _is_deterministic(subject: ModelImplementation) -> bool:
    """Return whether a model gives equal logits for equal tokens, as far as it gives any.

    NaN in the same places is equal: a row of attention without readable keys is no dropout. If
    the logits have no bound that is narrow enough, they have to be equal bit by bit.
    """
    with restored_state():
        inputs = draw(CASES[0].but(dtype=Testbed(subject).dtype))
        config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
        try:
            model = build(subject, config, weights)
            first, *others = (logits_of(model, ids, weights).double() for _ in range(3))
        except (NotClaimed, Raised, Violation):
            return True
        try:
            allowed = Allowed(config, weights, ids).own_logits
        except NotClaimed:
            allowed = torch.zeros_like(first)
    return all(
        bool((((each - first).abs() <= allowed) | (each.isnan() & first.isnan())).all())
        for each in others
    )


is_deterministic = memoize(_is_deterministic, kept=KEPT, where=is_hashable)


def _is_cache_right(subject: ModelImplementation) -> bool:
    """Return whether a model gives its own logits for tokens that come through a cache.

    Args:
        subject: a model; one without a cache, or whose calls fail, is not found wrong.
    """
    if ModelFeature.CACHE not in subject.features:
        return True
    with restored_state():
        inputs = draw(CASES[0].but(dtype=Testbed(subject).dtype, batch=2, length=5, n_positions=6))
        config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
        try:
            model = build(subject, config, weights)
            expected = logits_of(model, ids, weights).double()
            cache, parts = model.empty_cache(), []
            for chunk in ids.split([2, 1, 2], 1):
                logits, cache = call_with_cache(model, chunk, cache, weights)
                parts.append(logits)
            allowed = Allowed(config, weights, ids).own_logits
        except (NotClaimed, Raised, Violation):
            return True
    return bool(((torch.cat(parts, 1) - expected).abs() <= allowed).all())


is_cache_right = memoize(_is_cache_right, kept=KEPT, where=is_hashable)

first_divergence = memoize(_first_divergence, kept=KEPT, where=is_hashable)


def _search(subject: ModelImplementation) -> Divergence | None:
    testbed = Testbed(subject)
    if testbed.dtype not in (torch.float64, torch.float32):
        return None
    if not _is_deterministic_and_finite(testbed):
        return None
    divergence = next((each for each in _divergences(testbed) if each is not None), None)
    if divergence is not None:
        divergence = replace(
            divergence, configuration=testbed.configuration(), refused=tuple(testbed.refused)
        )
    if ModelFeature.HIDDEN_STATES not in subject.features:
        return divergence
    return combined_with_states(divergence, [compare_states(testbed, case) for case in CASES])


def _is_deterministic_and_finite(testbed: Testbed) -> bool:
    """Return whether plain models give finite logits, and equal ones for equal tokens."""
    inputs = draw(CASES[0].but(dtype=testbed.dtype))
    readout = testbed.closed_readout(coarse("plain", 2, 3, WIDTH))
    try:
        for config, weights, ids in (
            (readout.config, readout.weights, readout.input_ids),
            (inputs.config, inputs.state_dict, inputs.input_ids),
        ):
            model = build(testbed.subject, config, weights)
            first, _, again = (
                logits_of(model, tokens, weights) for tokens in (ids, ids.flip(1), ids)
            )
            if not (first.isfinite().all() and torch.equal(first, again)):
                return False
    except (Raised, Violation):
        return False
    return True


def _divergences(testbed: Testbed) -> Iterator[Divergence | None]:
    # everything is read through the head, so it comes first
    yield _divergence_in_head(testbed)
    yield _divergence_in_embeddings(testbed)
    for layer in range(LAYERS):
        yield divergence_in_block(testbed, layer)
    yield _divergence_in_final_norm(testbed)


def _divergence_in_embeddings(testbed: Testbed) -> Divergence | None:
    """Compare models that make the same stream in different ways."""
    rows = coarse("rows", 2, 3, WIDTH)
    plain = testbed.closed_readout(rows)
    reordered = testbed.closed_readout(rows.flip(0, 1))
    reordered = replace(reordered, input_ids=reordered.input_ids.flip(0, 1))
    if not testbed.same_readings(plain, reordered):
        return Divergence(
            stage=Stage.TOKENS, experiment="the rows of the token table in another order"
        )
    places = coarse("places", plain.config.n_positions, WIDTH)
    tokens_and_positions = testbed.closed_readout(rows - places[: rows.shape[1]]).but(
        wpe__weight=places
    )
    if testbed.same_readings(plain, tokens_and_positions):
        return None
    positions_alone = testbed.closed_readout(torch.zeros_like(rows)).but(wpe__weight=places)
    blame = Stage.EMBEDDING
    if testbed.is_right(plain) != testbed.is_right(positions_alone):
        blame = Stage.POSITIONS if testbed.is_right(plain) else Stage.TOKENS
    return Divergence(
        stage=blame, experiment="the same stream from tokens alone, and from tokens and positions"
    )


def _divergence_in_head(testbed: Testbed) -> Divergence | None:
    """Compare logits of rows of the head that are sums of other rows, for any input of the head."""
    for tied in (True, False):
        if not testbed.claims(tie_word_embeddings=tied):
            continue
        readout = testbed.closed_readout(coarse("read", 1, 4, WIDTH), tie_word_embeddings=tied)
        table = readout.weights["transformer.wte.weight"]
        if not tied:
            head = torch.cat([coarse("head", len(table) - WIDTH, WIDTH).to(table), table[-WIDTH:]])
            readout = replace(readout, weights=readout.weights | {"lm_head.weight": head})
            table = head
        try:
            logits = logits_of(
                build(testbed.subject, readout.config, readout.weights),
                readout.input_ids,
                readout.weights,
            ).double()
        except (NotClaimed, Raised, Violation):
            continue
        of_logits = Allowed(readout.config, readout.weights, readout.input_ids).tolerance(
            lambda passed: passed.logits
        )
        weight = table.double()
        expected = logits[..., -WIDTH:] @ weight.mT
        tolerance = of_logits + of_logits[..., -WIDTH:] @ weight.abs().mT
        if not agree_but_for_rounding(logits, expected, tolerance.amax()):
            testbed.diverged = readout.config
            kind = "tied to the token table" if tied else "with its own parameters"
            return Divergence(
                stage=Stage.HEAD,
                experiment=f"a head {kind}, whose last rows are the identity",
            )
    return None


def _divergence_in_final_norm(testbed: Testbed) -> Divergence | None:
    """Compare the input of the head, which a reading shows if the head is right."""
    gain, bias = 1 + coarse("final gain", WIDTH) / 2, coarse("final bias", WIDTH)
    for epsilon in testbed.claimed_epsilons(0.25, 1e-5):
        readout = testbed.closed_readout(coarse("final", 2, 4, WIDTH), layer_norm_epsilon=epsilon)
        readout = readout.but(ln_f__weight=gain, ln_f__bias=bias)
        if testbed.is_right(readout):
            continue
        if _gives_other_tokens(testbed, readout):
            return Divergence(
                stage=Stage.HEAD,
                experiment="branches that add zero: each token has the logits of another",
                mixes_rows=True,
            )
        return Divergence(
            stage=Stage.FINAL_NORM,
            experiment="branches that add zero, the identity as a head, gain and bias",
        )
    return None


def _gives_other_tokens(testbed: Testbed, readout: Readout) -> bool:
    """Return whether each token has the expected logits of some token of its sequence."""
    try:
        reading = testbed.reading(readout)
    except NotClaimed:
        return False
    expected = testbed.expected_reading(readout)
    if reading is None:
        return False
    tolerance = reading_bound(readout).amax()
    distance = (reading.double()[:, :, None] - expected[:, None]).abs().amax(-1)
    return bool((distance.amin(-1) <= tolerance * (1 + expected.abs().amax())).all())

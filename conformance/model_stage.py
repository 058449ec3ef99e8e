"""The first stage of a broken GPT-2 that diverges from the oracle.

Models are built of which all but one stage is known, in the order of the forward pass: embeddings,
block 0, block 1, final LayerNorm, head. The first experiment that comes out wrong, where all before
it are right, names the stage. Hidden states, where the subject hands them out, must not contradict
it, and tell the block where no experiment does.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnspec.conformance.model_case import draw
from attnspec.conformance.model_judge import Allowed, ask, build
from attnspec.conformance.model_probe import Probe
from attnspec.conformance.model_stage_bench import WIDTH, Bench, alike, coarse, gate_of
from attnspec.conformance.model_stage_block import in_block
from attnspec.conformance.model_stage_names import Finding, Stage
from attnspec.conformance.model_stage_states import CASES, first_state, with_states
from attnspec.conformance.process import restored
from attnspec.conformance.subject import Raised
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import ModelFeature, ModelImplementation

LAYERS = 2
"""Blocks that are looked into: the second shows what depends on the layer's number."""

_KEPT: dict[int, tuple[ModelImplementation, Finding | None]] = {}
_MOST = 64


def diverges(subject: ModelImplementation) -> Finding | None:
    """Name the first stage of a model that diverges from its oracle.

    Args:
        subject: has broken a law.

    Returns:
        Nothing where it answers differently each time, raises on plain models, or where no
        experiment comes out wrong: then what is broken is no stage.
    """
    known = _KEPT.get(id(subject))
    if known is not None:
        return known[1]
    with restored():
        try:
            found = _diverges(subject)
        except NotClaimed:
            found = None
    if len(_KEPT) >= _MOST:
        _KEPT.clear()
    # the subject is kept too, so that no other one gets its address
    _KEPT[id(subject)] = subject, found
    return found


def _diverges(subject: ModelImplementation) -> Finding | None:
    bench = Bench(subject)
    if bench.dtype not in (torch.float64, torch.float32):
        return None
    if not _can_be_measured(bench):
        return None
    found = next((each for each in _narrowed(bench) if each is not None), None)
    if ModelFeature.HIDDEN_STATES not in subject.features:
        return found
    return with_states(found, [first_state(bench, case) for case in CASES])


def _can_be_measured(bench: Bench) -> bool:
    """Whether plain models give finite logits, the same for the same tokens each time."""
    inputs = draw(CASES[0].but(dtype=bench.dtype))
    shown = bench.closed(coarse("plain", 2, 3, WIDTH))
    try:
        for config, weights, ids in (
            (shown.config, shown.weights, shown.input_ids),
            (inputs.config, inputs.state_dict, inputs.input_ids),
        ):
            model = build(bench.subject, config, weights)
            first, _, again = (ask(model, each, weights) for each in (ids, ids.flip(1), ids))
            if not (first.isfinite().all() and torch.equal(first, again)):
                return False
    except (Raised, Violation):
        return False
    return True


def _narrowed(bench: Bench) -> Iterator[Finding | None]:
    # whatever is read is read through the head
    yield _in_head(bench)
    yield _in_embeddings(bench)
    for layer in range(LAYERS):
        yield in_block(bench, layer)
    yield _in_final_norm(bench)


def _in_embeddings(bench: Bench) -> Finding | None:
    """The same stream, made in two ways."""
    rows = coarse("rows", 2, 3, WIDTH)
    plain = bench.closed(rows)
    turned = bench.closed(rows.flip(0, 1))
    turned = replace(turned, input_ids=turned.input_ids.flip(0, 1))
    if not bench.same(plain, turned):
        return Finding(
            stage=Stage.TOKENS, experiment="the rows of the token table in another order"
        )
    places = coarse("places", plain.config.n_positions, WIDTH)
    shared = bench.closed(rows - places[: rows.shape[1]]).but(wpe__weight=places)
    if bench.same(plain, shared):
        return None
    alone = bench.closed(torch.zeros_like(rows)).but(wpe__weight=places)
    blame = Stage.EMBEDDING
    if bench.is_right(plain) != bench.is_right(alone):
        blame = Stage.POSITIONS if bench.is_right(plain) else Stage.TOKENS
    return Finding(
        stage=blame, experiment="the same stream from tokens alone, and from tokens and positions"
    )


def _in_head(bench: Bench) -> Finding | None:
    """Logits of rows that are sums of the identity's, whatever the head reads."""
    for tied in (True, False):
        if not bench.claims(tie_word_embeddings=tied):
            continue
        shown = bench.closed(coarse("read", 1, 4, WIDTH), tie_word_embeddings=tied)
        table = shown.weights["transformer.wte.weight"]
        if not tied:
            head = torch.cat([coarse("head", len(table) - WIDTH, WIDTH).to(table), table[-WIDTH:]])
            shown = replace(shown, weights=shown.weights | {"lm_head.weight": head})
            table = head
        try:
            logits = ask(
                build(bench.subject, shown.config, shown.weights), shown.input_ids, shown.weights
            ).double()
        except (NotClaimed, Raised, Violation):
            continue
        gate = Allowed(shown.config, shown.weights, shown.input_ids).gate(lambda each: each.logits)
        weight = table.double()
        due = logits[..., -WIDTH:] @ weight.mT
        slack = gate + gate[..., -WIDTH:] @ weight.abs().mT
        if not alike(logits, due, slack):
            which = "tied to the token table" if tied else "of its own weights"
            return Finding(
                stage=Stage.HEAD,
                experiment=f"a head {which}, the logits of whose last rows are what it reads",
            )
    return None


def _in_final_norm(bench: Bench) -> Finding | None:
    """The reading itself, which says what enters the head if the head is right."""
    gain, bias = 1 + coarse("final gain", WIDTH) / 2, coarse("final bias", WIDTH)
    for epsilon in (0.25, 1e-5):
        shown = bench.closed(coarse("final", 2, 4, WIDTH), layer_norm_epsilon=epsilon)
        shown = shown.but(ln_f__weight=gain, ln_f__bias=bias)
        if bench.is_right(shown):
            continue
        if _out_of_place(bench, shown):
            return Finding(
                stage=Stage.HEAD,
                experiment="branches that add zero: each token gives what another should",
            )
        return Finding(
            stage=Stage.FINAL_NORM,
            experiment="branches that add zero, the identity as a head, gain and bias",
        )
    return None


def _out_of_place(bench: Bench, shown: Probe) -> bool:
    """Whether every token gives the logits that some token of its sequence should give."""
    try:
        got = bench.reading(shown)
    except NotClaimed:
        return False
    expected = bench.expected(shown)
    if got is None:
        return False
    gate = gate_of(shown).amax()
    distance = (got.double()[:, :, None] - expected[:, None]).abs().amax(-1)
    return bool((distance.amin(-1) <= gate * (1 + expected.abs().amax())).all())

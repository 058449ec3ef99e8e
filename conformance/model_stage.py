"""The first stage of a broken GPT-2 that diverges from the oracle.

Models are built of which all but one stage is known, in the order of the forward pass: embeddings,
block 0, block 1, final LayerNorm, head. The first experiment that comes out wrong, where all before
it are right, names the stage. Hidden states, where the subject hands them out, must not contradict
it, and tell the block where no experiment does.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from attnspec.conformance.model_case import ModelCase, draw
from attnspec.conformance.model_judge import Allowed, ask, build, call, doubled, model_oracle
from attnspec.conformance.model_probe import Probe
from attnspec.conformance.model_stage_bench import WIDTH, Bench, alike, coarse, gate_of
from attnspec.conformance.model_stage_block import in_block
from attnspec.conformance.model_stage_names import Finding, Stage
from attnspec.conformance.process import restored
from attnspec.conformance.subject import Raised
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import ModelFeature, ModelImplementation

LAYERS = 2
"""Blocks that are looked into: the second shows what depends on the layer's number."""

_CASES = (
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
    if not _can_be_measured(bench):
        return None
    found = next((each for each in _narrowed(bench) if each is not None), None)
    if ModelFeature.HIDDEN_STATES not in subject.features:
        return found
    return _with_states(found, [_first_state(bench, case) for case in _CASES])


def _can_be_measured(bench: Bench) -> bool:
    """Whether plain models give finite logits, the same for the same tokens each time."""
    inputs = draw(_CASES[0].but(dtype=bench.dtype))
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
    yield _in_embeddings(bench)
    for layer in range(LAYERS):
        yield in_block(bench, layer)
    yield _in_head(bench)
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


# HIDDEN STATES


def _first_state(bench: Bench, case: ModelCase) -> tuple[int | None, int, bool] | None:
    """The first hidden state that diverges, how many there are, and whether the logits are right.

    Nothing where the subject does not claim the case, or hands out no such states.
    """
    inputs = draw(case.but(dtype=bench.dtype))
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    try:
        model = build(bench.subject, config, weights)
        with torch.no_grad():
            logits, got = call(model, ids, output_hidden_states=True)
            plain = ask(model, ids, weights)
            oracle = model_oracle(bench.subject).build(config, doubled(weights))
            due_logits, due = oracle(ids, output_hidden_states=True)
    except (NotClaimed, Raised, TypeError, ValueError, Violation):
        return None
    allowed = Allowed(config, weights, ids)
    if len(got) != len(due) or any(
        not isinstance(one, torch.Tensor) or one.shape != two.shape
        for one, two in zip(got, due, strict=False)
    ):
        return None
    first = None
    for place, (one, two) in enumerate(zip(got, due, strict=True)):
        gate = allowed.gate(lambda passed, place=place: passed.hidden_states[place])
        if first is None and not ((one.double() - two).abs() <= gate).all():
            first = place
    gate = allowed.gate(lambda passed: passed.logits)
    return first, len(due) - 1, bool(((plain.double() - due_logits).abs() <= gate).all())


def _with_states(
    found: Finding | None, states: list[tuple[int | None, int, bool] | None]
) -> Finding | None:
    """Hold a finding against the hidden states, and where there is none let them speak."""
    told = [each for each in states if each is not None]
    wrong = [(first, last) for first, last, is_right in told if first is not None and not is_right]
    if found is None and not wrong and any(first is not None for first, _, _ in told):
        return Finding(
            stage=Stage.STATES, experiment="random models, whose logits are right all the same"
        )
    if not wrong:
        return found
    first, last = min(wrong)
    if found is not None and first >= _place(found, last):
        return found
    experiment = "the hidden states of random models"
    if first == 0:
        return Finding(stage=Stage.EMBEDDING, experiment=experiment)
    # the last state comes after the final LayerNorm too
    if found is None and first == last:
        return None
    return Finding(stage=Stage.BLOCK, layer=first - 1, experiment=experiment)


def _place(found: Finding, last: int) -> int:
    """The first hidden state that comes after a stage."""
    if found.layer is not None:
        return min(found.layer + 1, last)
    is_late = found.stage in (Stage.FINAL_NORM, Stage.HEAD)
    return last if is_late else 0

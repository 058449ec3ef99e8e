"""Laws of EMB: tokens select rows, positions add, and ids without a row are refused."""

from typing import Any

import torch
from hypothesis import strategies as st

from attnspec.conformance.laws.law import law
from attnspec.conformance.models.cached import fed_in_parts
from attnspec.conformance.models.case import ModelCase, draw, model_cases, normal
from attnspec.conformance.models.oracle import Allowed, check_within, own_logits
from attnspec.conformance.models.readout import PINNED, coarse_rows, make_readout, normalized
from attnspec.conformance.models.subject import build, check_raises, logits_of
from attnspec.spec import ModelFeature, ModelImplementation


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


@law("EMB-1", pinned=PINNED, explore=_cases)
def law_each_token_selects_its_row(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-1: a token puts its own row of the table into the residual stream, at any position."""
    rows = coarse_rows(case)
    # tokens in order and in reverse: each id at two positions of the sequence
    count = len(rows)
    input_ids = torch.stack([torch.arange(count), torch.arange(count).flip(0)])
    readout = make_readout(rows, case, input_ids=input_ids)
    check_within(
        readout.read(subject),
        normalized(rows[input_ids], case.layer_norm_epsilon),
        readout.tolerance,
        what="final LayerNorm",
        message="a token does not select its own row of wte",
    )


@law("EMB-2", pinned=PINNED, explore=_cases)
def law_positions_add(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-2: the row of position 0, 1, 2, ... is added to the row of each token."""
    readout = make_readout(coarse_rows(case), case)
    places = (
        normal(case.seed, "places", *readout.weights["transformer.wpe.weight"].shape) * 256
    ).round()
    readout = readout.but(wpe__weight=places / 256)
    check_within(
        readout.read(subject),
        normalized(readout.stream, case.layer_norm_epsilon),
        readout.tolerance,
        what="final LayerNorm",
        message="the stream does not start as token row plus position row, counted from 0",
    )


@law("EMB-2", pinned=PINNED[:6], needs={ModelFeature.PADDING})
def law_given_positions_select_their_rows(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-2: position ids count instead of 0, 1, 2, ..., with and without a mask of real tokens.

    Also of tokens that come after others through a cache.
    """
    first = 2
    inputs = draw(case.but(n_positions=case.length + first))
    config, weights, ids = inputs.config, inputs.state_dict, inputs.input_ids
    # in steps of one: where they jump, some libraries start another sequence
    places = (first + torch.arange(case.length)).expand(ids.shape)
    tolerance = Allowed(config, weights, ids, position_ids=places).own_logits
    table = weights["transformer.wpe.weight"]
    moved = {**weights, "transformer.wpe.weight": table.roll(-first, 0)}
    expected = own_logits(subject, config, moved, ids)
    in_parts, sizes = None, [-(-case.length // 2), case.length // 2]
    if ModelFeature.CACHE in subject.features:
        # in the same steps, so that whatever else is wrong with a cache spoils both alike
        counted = torch.arange(case.length).expand(ids.shape)
        other = build(subject, config, moved)
        in_parts = fed_in_parts(other, ids, moved, sizes, position_ids=counted).double()
    model = build(subject, config, weights)  # after the other models, with which it may share state
    for mask in (None, torch.ones_like(ids)):
        given = "without a mask" if mask is None else "with a mask"
        options: dict[str, Any] = {"position_ids": places}
        if mask is not None:
            options["attention_mask"] = mask
        check_within(
            logits_of(model, ids, weights, **options),
            expected,
            tolerance,
            what="logits",
            message=f"given positions are not used {given}",
        )
        if in_parts is not None:
            check_within(
                fed_in_parts(model, ids, weights, sizes, **options),
                in_parts,
                tolerance,
                what="logits",
                message=f"given positions are not used {given}, in parts with a cache",
            )


@law("EMB-3", pinned=PINNED[:4])
def law_an_id_without_a_row_is_an_error(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-3: a token id below 0 or not below the vocabulary's size raises."""
    readout = make_readout(coarse_rows(case), case)
    model = build(subject, readout.config, readout.weights)
    logits_of(model, readout.input_ids, readout.weights)
    vocab = readout.config.vocab_size
    for wrong in (vocab, vocab + 1, 2 * vocab, -1, -vocab, 2**40):
        input_ids = readout.input_ids.clone()
        input_ids[-1, -1] = wrong
        check_raises(
            model, input_ids, f"id {wrong} gives logits, though the vocabulary is 0 to {vocab - 1}"
        )


@law("EMB-4", pinned=PINNED[:4])
def law_a_sequence_longer_than_the_positions_is_an_error(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """EMB-4: more tokens than there are positions raise, and as many do not."""
    readout = make_readout(coarse_rows(case), case)
    model = build(subject, readout.config, readout.weights)
    limit = readout.config.n_positions
    full = torch.zeros(1, limit, dtype=torch.long)
    logits_of(model, full, readout.weights)
    for excess in (1, limit):
        check_raises(
            model,
            torch.zeros(1, limit + excess, dtype=torch.long),
            f"{limit + excess} tokens give logits, though there are {limit} positions",
        )


@law("EMB-4", pinned=PINNED[2:6], needs={ModelFeature.PADDING})
def law_a_position_without_a_row_is_an_error(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-4: a position id below 0 or not below their number raises."""
    readout = make_readout(coarse_rows(case), case)
    model = build(subject, readout.config, readout.weights)
    limit = readout.config.n_positions
    real = torch.ones_like(readout.input_ids)
    for wrong in (limit, limit + 7, -1):
        places = torch.zeros_like(readout.input_ids)
        places[-1, -1] = wrong
        check_raises(
            model,
            readout.input_ids,
            f"position {wrong} gives logits, though positions are 0 to {limit - 1}",
            attention_mask=real,
            position_ids=places,
        )

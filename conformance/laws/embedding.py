"""Laws of the embeddings: rows are selected, positions add, and what has no row is refused."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_case import ModelCase, model_cases, normal
from attnspec.conformance.model_judge import ask, build, hold, must_refuse
from attnspec.conformance.model_probe import PINNED, coarse_rows, normalized, probe
from attnspec.spec import ModelFeature, ModelImplementation


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


@law("EMB-1", judges=Judged.MODEL, pinned=PINNED, explore=_cases)
def law_each_token_selects_its_row(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-1: a token puts its own row of the table into the residual stream, at any place."""
    rows = coarse_rows(case)
    # every token in order and in reverse: each id at two places of the sequence
    count = len(rows)
    input_ids = torch.stack([torch.arange(count), torch.arange(count).flip(0)])
    shown = probe(rows, case, input_ids=input_ids)
    hold(
        shown.read(subject),
        normalized(rows[input_ids], case.layer_norm_epsilon),
        shown.gate,
        what="final LayerNorm",
        message="a token does not select its own row of wte",
    )


@law("EMB-2", judges=Judged.MODEL, pinned=PINNED, explore=_cases)
def law_positions_add(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-2: the row of position 0, 1, 2, ... is added to the row of each token."""
    shown = probe(coarse_rows(case), case)
    places = (
        normal(case.seed, "places", *shown.weights["transformer.wpe.weight"].shape) * 256
    ).round()
    shown = shown.but(wpe__weight=places / 256)
    hold(
        shown.read(subject),
        normalized(shown.stream, case.layer_norm_epsilon),
        shown.gate,
        what="final LayerNorm",
        message="the stream does not start as token row plus position row, counted from 0",
    )


@law("EMB-3", judges=Judged.MODEL, pinned=PINNED[:4])
def law_an_id_without_a_row_is_an_error(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-3: a token id below 0 or not below the vocabulary's size raises."""
    shown = probe(coarse_rows(case), case)
    model = build(subject, shown.config, shown.weights)
    ask(model, shown.input_ids, shown.weights)
    vocab = shown.config.vocab_size
    for wrong in (vocab, vocab + 1, 2 * vocab, -1, -vocab, 2**40):
        input_ids = shown.input_ids.clone()
        input_ids[-1, -1] = wrong
        must_refuse(
            model, input_ids, f"id {wrong} gives logits, though the vocabulary is 0 to {vocab - 1}"
        )


@law("EMB-4", judges=Judged.MODEL, pinned=PINNED[:4])
def law_a_sequence_longer_than_the_positions_is_an_error(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """EMB-4: more tokens than there are positions raise, and as many do not."""
    shown = probe(coarse_rows(case), case)
    model = build(subject, shown.config, shown.weights)
    limit = shown.config.n_positions
    full = torch.zeros(1, limit, dtype=torch.long)
    ask(model, full, shown.weights)
    for more in (1, limit):
        must_refuse(
            model,
            torch.zeros(1, limit + more, dtype=torch.long),
            f"{limit + more} tokens give logits, though there are {limit} positions",
        )


@law("EMB-4", judges=Judged.MODEL, pinned=PINNED[2:6], needs={ModelFeature.PADDING})
def law_a_position_without_a_row_is_an_error(subject: ModelImplementation, case: ModelCase) -> None:
    """EMB-4: a position id below 0 or not below their number raises."""
    shown = probe(coarse_rows(case), case)
    model = build(subject, shown.config, shown.weights)
    limit = shown.config.n_positions
    real = torch.ones_like(shown.input_ids)
    for wrong in (limit, limit + 7, -1):
        places = torch.zeros_like(shown.input_ids)
        places[-1, -1] = wrong
        must_refuse(
            model,
            shown.input_ids,
            f"position {wrong} gives logits, though positions are 0 to {limit - 1}",
            attention_mask=real,
            position_ids=places,
        )

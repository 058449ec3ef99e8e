"""Laws of CRS: what each target position reads of source and target, at once and in steps."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Raised, Violation
from attnspec.conformance.laws.encoder_decoder.definition import F32, PINNED, TWO, source_of
from attnspec.conformance.laws.law import law
from attnspec.conformance.operators.built_model import AXES
from attnspec.conformance.operators.encoder_decoder.case import EncoderDecoderCase, cases
from attnspec.conformance.operators.encoder_decoder.subject import EncoderDecoderSubject
from attnspec.conformance.operators.padding import SIDES, without_padding
from attnspec.spec.padding import PaddedPositions


@law(
    "CRS-6",
    pinned=tuple(
        TWO.but(source=source, target=target, learned=is_learned, seed=source)
        for source, target in ((3, 5), (6, 2), (4, 4))
        for is_learned in (False, True)
    ),
    explore=source_of(encoder_layers=2, decoder_layers=2),
)
def law_keys_and_values_come_from_the_last_encoder_state(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-6: every block of the decoder makes keys and values of the encoder's last states."""
    subject.judge_case(case, "cross-attention does not read the last states of the encoder")


@law("CRS-7", pinned=PINNED[1:], explore=source_of(encoder_layers=1), cost=2.0)
def law_no_logit_depends_on_later_target_tokens(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-7: each target token reads itself and earlier ones; other later ones change nothing."""
    weights, inputs = case.draw_parameters(), case.draw()
    message = "a logit depends on later target tokens"
    first = subject.judge(case, weights, inputs, message)["logits"].double()
    changed = inputs["decoder_input_ids"].clone()
    changed[:, -1] = (changed[:, -1] + 1) % case.vocab
    other = {**inputs, "decoder_input_ids": changed}
    second = subject.judge(case, weights, other, message)["logits"].double()
    bound = 2 * subject.expect(case, weights, inputs)["logits"].bound
    is_real = subject.is_real("logits", first, inputs)[:, :-1]
    check_close(
        torch.where(is_real, second[:, :-1], 0.0),
        torch.where(is_real, first[:, :-1], 0.0),
        torch.where(is_real, bound[:, :-1], 0.0),
        what="logits before the last target token",
        message=message,
        axes=AXES,
    )


@law("CRS-8", pinned=PINNED[1:], explore=source_of(padded=False, decoder_layers=1), cost=2.0)
def law_every_target_position_reads_the_whole_source(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-8: no causal mask hides tokens of the source: the last one changes every position."""
    weights, inputs = case.draw_parameters(), case.draw()
    ids = inputs["input_ids"].clone()
    ids[:, -1] = (ids[:, -1] + 1) % case.vocab
    for each in (inputs, {**inputs, "input_ids": ids}):
        subject.judge(case, weights, each, "a target position does not read the whole source")


_SIDES = (("input_ids", "attention_mask"), ("decoder_input_ids", "decoder_attention_mask"))


def _alone(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase, weights: Any, inputs: Any, text: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    """Return one pair of a batch without padding and masks, and the slots of its target tokens.

    The tables of positions begin with the rows that the tokens have in the batch.
    """
    alone, tables = {}, dict(weights)
    slots = torch.tensor([], dtype=torch.long)
    for side, (name, mask) in zip(("encoder", "decoder"), _SIDES, strict=True):
        ids = inputs[name]
        real = inputs.get(mask, torch.ones_like(ids))
        slots, alone[name], places = without_padding(ids, real, text, subject.profile.positions)
        if case.learned:
            table = f"model.{side}.embed_positions.weight"
            tables[table] = weights[table].clone()
            tables[table][2 : 2 + len(places)] = weights[table][2 + places]
    return tables, alone, slots


def _check_alone(subject: EncoderDecoderSubject, case: EncoderDecoderCase, message: str) -> None:
    """Check that each pair of a batch gives what it gives alone, whatever its padding is."""
    weights, inputs = case.draw_parameters(), case.draw()
    subject.judge(case, weights, inputs, message)
    other = dict(inputs)
    for ids, mask in _SIDES:
        if mask in inputs:
            changed = (inputs[ids] + 1) % case.vocab
            other[ids] = torch.where(inputs[mask].bool(), inputs[ids], changed)
    got = subject.call(case, weights, other)["logits"].double()
    bound = subject.expect(case, weights, other)["logits"].bound
    if not (case.learned or _has_positions_of_its_own(subject, case)):
        return
    single = case.but(batch=1, padded=False, target_padded=False)
    for text in range(case.batch):
        tables, alone, slots = _alone(subject, case, weights, inputs, text)
        expected = subject.expect(single, tables, alone)["logits"]
        check_close(
            got[text, slots],
            expected.value[0],
            expected.bound[0] + bound[text, slots],
            what=f"logits of text {text}",
            message=message,
            axes=AXES[1:],
            places={"position": slots},
        )


def _has_positions_of_its_own(subject: EncoderDecoderSubject, case: EncoderDecoderCase) -> bool:
    """Return whether the tokens of a text have the positions that they have alone."""
    counted = subject.profile.positions is PaddedPositions.REAL_TOKENS
    return counted or case.padding_side == "right"


@law(
    "CRS-9",
    pinned=tuple(
        EncoderDecoderCase(
            batch=3, source=source, padded=True, learned=is_learned, dtype=dtype, seed=seed
        )
        for seed, source in enumerate((2, 4, 6))
        for is_learned in (False, True)
        for dtype in (torch.float64, F32)
    ),
    explore=source_of(padded=True, target_padded=False, padding_side="right"),
    needs=("padding",),
    cost=4.0,
)
def law_padding_of_the_source_reaches_nothing(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-9: neither the encoder nor cross-attention reads padding of the source."""
    _check_alone(subject, case, "padding of the source changes a logit")


@law(
    "CRS-10",
    pinned=tuple(
        EncoderDecoderCase(
            batch=3, target=target, target_padded=True, learned=is_learned, dtype=dtype, seed=seed
        )
        for seed, target in enumerate((2, 4, 6))
        for is_learned in (False, True)
        for dtype in (torch.float64, F32)
    ),
    explore=source_of(target_padded=True, padding_side="right"),
    needs=("target_padding",),
    cost=4.0,
)
def law_padding_of_the_target_reaches_no_real_position(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-10: with a mask of the target, real tokens read what they read alone, and no more."""
    _check_alone(subject, case, "padding of the target changes a logit of a real token")


@law(
    "CRS-11",
    pinned=tuple(case.but(learned=True) for case in PINNED[1:]),
    explore=source_of(padded=False, learned=True),
    needs=("learned",),
    cost=2.0,
)
def law_a_reversed_source_with_reversed_positions_gives_the_same_logits(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-11: cross-attention knows the order of the source from the encoder's positions alone."""
    weights, inputs = case.draw_parameters(), case.draw()
    table = "model.encoder.embed_positions.weight"
    turned = {**weights, table: weights[table].clone()}
    rows = slice(2, 2 + case.source)
    turned[table][rows] = weights[table][rows].flip(0)
    backwards = {**inputs, "input_ids": inputs["input_ids"].flip(1)}
    first = subject.call(case, weights, inputs)["logits"].double()
    second = subject.call(case, turned, backwards)["logits"].double()
    bounds = [
        subject.expect(case, *each)["logits"].bound
        for each in ((weights, inputs), (turned, backwards))
    ]
    is_real = subject.is_real("logits", first, inputs)
    check_close(
        torch.where(is_real, second, 0.0),
        torch.where(is_real, first, 0.0),
        torch.where(is_real, bounds[0] + bounds[1], 0.0),
        what="logits of the reversed source",
        message="the order of the source matters beside its positions",
        axes=AXES,
    )


STEPPED = (
    EncoderDecoderCase(target=2, chunks=(1, 1)),
    EncoderDecoderCase(target=4, chunks=(1, 1, 1, 1), learned=True, seed=1),
    EncoderDecoderCase(target=5, chunks=(1, 2, 2), dtype=F32, seed=2),
    EncoderDecoderCase(target=5, chunks=(3, 1, 1), padded=True, batch=2, source=5, seed=2),
    TWO.but(target=6, chunks=(2, 3, 1), seed=4),
)


def _chunked(subject: EncoderDecoderSubject) -> st.SearchStrategy[EncoderDecoderCase]:
    """Return a strategy of cases whose targets come in parts."""
    plans = st.lists(st.integers(1, 3), min_size=1, max_size=4)
    return st.builds(
        lambda case, plan: case.but(target=sum(plan), positions=12, chunks=tuple(plan)),
        cases(subject, target_padded=False, positions=12),
        plans,
    )


@law("CRS-17", pinned=STEPPED, explore=_chunked, needs=("steps",), cost=2.0)
def law_steps_equal_teacher_forcing(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-17: logits of targets in parts of any size are those of all target tokens at once."""
    subject.demand(case)
    subject.judge_case(case, "steps give other logits than one call with all target tokens")


@law(
    "CRS-18",
    pinned=(
        EncoderDecoderCase(d_model=8, source=4, target=3, chunks=(1, 1, 1)),
        TWO.but(source=6, target=3, chunks=(1, 1, 1), learned=True, seed=1),
    ),
    needs=("steps",),
)
def law_keys_and_values_of_the_source_are_computed_once(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-18: after the first step, no step multiplies the states of the source by a matrix.

    A step of c tokens multiplies each of S source positions with c queries and c rows of weights,
    4·d_model·c operations for each block and text. A projection of one block takes 2·d_model² for
    each position and text more.
    """
    counts, added = [], 3 * case.source
    longer = case.but(source=case.source + added, positions=4 * case.source)
    for each in (case.but(positions=4 * case.source), longer):
        weights, inputs = each.draw_parameters(), each.draw()
        parts = inputs["decoder_input_ids"].split(list(each.chunks), dim=1)
        try:
            with torch.no_grad():
                model = subject.build(each, weights)
                _, cache = model.step(parts[0], model.start(inputs["input_ids"]))
                with FlopCounterMode(display=False) as counter:
                    model.step(parts[1], cache)
        except Exception as error:
            raise Raised(f"{type(error).__name__}: {error}") from error
        counts.append(counter.get_total_flops())
    tokens = case.chunks[1] * case.batch * added
    needed = 4 * case.d_model * case.decoder_layers * tokens
    projected = 2 * case.d_model**2 * case.batch * added
    if counts[1] - counts[0] >= needed + projected:
        raise Violation(
            f"a step with {added} more source tokens takes {counts[1] - counts[0]} more operations "
            f"of matrix products, {needed} for scores and sums of values: keys or values of the "
            "source are computed again"
        )


@law(
    "CRS-19",
    pinned=(
        EncoderDecoderCase(batch=2, seed=1),
        EncoderDecoderCase(batch=3, learned=True, target=5, seed=2),
        TWO.but(batch=3, seed=3),
    ),
    explore=source_of(batch=3, padded=False, target_padded=False),
    cost=4.0,
)
def law_each_target_reads_its_own_source(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-19: each pair of a batch gives what it gives alone."""
    _check_alone(subject, case, "a target reads the source of another text")


def _anywhere(**padded: Any) -> tuple[EncoderDecoderCase, ...]:
    """Return cases whose padding lies before or between tokens."""
    return tuple(
        EncoderDecoderCase(
            batch=3,
            source=length,
            target=length + 1,
            padding_side=side,
            learned=is_learned,
            dtype=dtype,
            seed=seed,
            **padded,
        )
        for seed, length in enumerate((2, 4, 6))
        for side in ("left", "anywhere")
        for is_learned in (False, True)
        for dtype in (torch.float64, F32)
    )


@law(
    "CRS-22",
    pinned=_anywhere(padded=True),
    explore=source_of(padded=True, target_padded=False, padding_side=st.sampled_from(SIDES[1:])),
    needs=("any_padding",),
    cost=4.0,
)
def law_padding_of_the_source_may_lie_anywhere(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-22: the encoder and cross-attention hide padding before and between tokens."""
    _check_alone(subject, case, "padding before or between tokens of the source changes a logit")


@law(
    "CRS-23",
    pinned=_anywhere(target_padded=True),
    explore=source_of(padded=False, target_padded=True, padding_side=st.sampled_from(SIDES[1:])),
    needs=("any_target_padding",),
    cost=4.0,
)
def law_padding_of_the_target_may_lie_anywhere(
    subject: EncoderDecoderSubject, case: EncoderDecoderCase
) -> None:
    """CRS-23: real tokens of the target read what they read alone, wherever its padding lies."""
    _check_alone(subject, case, "padding before or between tokens of the target changes a logit")

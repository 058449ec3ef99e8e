"""Workloads: the calls that known models make, by phase, and the options that come with them.

Every two classes of sizes and options meet in calls of NUM-18, mostly small ones. A kernel may be
wrong only where more of them come together, as a causal flag, groups of heads, 128 channels and
1 000 tokens do in each prefill of a Llama. So each phase of each model is called in its own sizes.
"""

import functools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnspec.conformance.attention.model_sizes import (
    BIAS,
    LEFT_PADDING,
    OWN_BIAS,
    PADDING,
    SIDES,
    TEXTS,
)
from attnspec.conformance.attention.phases import PHASES, Phase
from attnspec.spec import (
    CallMode,
    Case,
    Feature,
    Layout,
    Layouts,
    MaskKind,
    Values,
)

__all__ = ["PHASES", "Phase", "Turns", "workloads"]

NUMBERS = 8e6
"""Numbers of the keys and values of a call, which take a core a few tenths of a second."""

MASKS = (PADDING, LEFT_PADDING, BIAS, OWN_BIAS, TEXTS)

MODES = (
    CallMode.PLAIN,
    CallMode.NO_GRAD,
    CallMode.THREADS,
    CallMode.INFERENCE,
    CallMode.OTHER_THREAD,
    CallMode.DEFAULT_FLOAT16,
    CallMode.DEFAULT_BFLOAT16,
    CallMode.SERVING,
)
MODES_OF_TRAINING = (
    CallMode.PLAIN,
    CallMode.DETERMINISTIC,
    CallMode.DEFAULT_BFLOAT16,
    CallMode.LAYERS,
    CallMode.THREADS,
    CallMode.DEFAULT_FLOAT16,
    CallMode.OTHER_THREAD,
    CallMode.LAYERS,
    CallMode.TWO_BACKWARDS,
    CallMode.DEFAULT_FLOAT64,
    CallMode.TRAINING,
)
LAYOUTS = (
    Layout.CONTIGUOUS,
    Layout.HEADS_INSIDE,
    Layout.PACKED,
    Layout.LENGTH_FIRST,
    Layout.PACKED_HEADS,
)
CACHES = (
    Layout.CONTIGUOUS,
    Layout.CACHE,
    Layout.HEADS_INSIDE,
    Layout.CACHE_INSIDE,
    Layout.FEWER_HEADS,
    Layout.EXPANDED_BATCH,
    Layout.TRANSPOSED,
)
"""Layouts of keys and values that come from a cache, which all texts of a batch may share; beside
transposed keys, values are contiguous."""
ONE = "one"
SCALES = (*[None] * 7, 0.8, 1.0, 0.125, -0.8, ONE)
"""Scales in that of the definition; most calls give none, and many models that of the definition
itself, one that falls as fast as the width of a head grows, or, as T5, one."""
VALUES_APART = (False, True, False)
"""Turns of calls, true for those whose values lie otherwise than the keys."""
ONE_FOR_ALL = (True, *[False] * 8)
"""Turns of calls, true for those whose queries are the same for each text, as learned ones are."""
SHARED = (True, *[False] * 6)
"""Turns of calls, true for those whose key/value heads are views of one head."""
CONTENTS = (
    Values.NEEDLES,
    Values.NORMAL,
    Values.UNEVEN,
    Values.PEAKED,
    Values.PLATEAU,
    Values.OFFSET,
)
"""Contents by turns; over many keys, the mistakes in a few of them show with needles alone."""

ALTERNATIVES: tuple[tuple[Feature, ...], ...] = (
    (),
    (Feature.WINDOW,),
    (Feature.WINDOW, Feature.SINKS),
    (Feature.SINKS,),
    (Feature.SOFTCAP,),
    (Feature.WINDOW, Feature.SOFTCAP),
    (Feature.ALIBI,),
    (Feature.LSE,),
    (Feature.MASK,),
    (Feature.WINDOW, Feature.MASK),
)
"""Options of decoders, of which each phase is run with half of those that are claimed or more."""

ALTERNATIVES_WITHOUT_ORDER: tuple[tuple[Feature, ...], ...] = (
    (),
    (Feature.LSE,),
    (Feature.MASK,),
    (Feature.SOFTCAP,),
    (Feature.SINKS,),
)
"""Likewise of phases in which queries do not follow one another."""


def claimed_alternatives(claimed: Collection[Feature]) -> list[tuple[Feature, ...]]:
    """Return those options of decoders that are claimed, the first of which is none."""
    return [each for each in ALTERNATIVES if set(each) <= set(claimed)]


class Turns:
    """Choices by turns: each occurs before one occurs again, in an order that dice draw."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.left: dict[object, list[Any]] = {}

    def choose(self, among: Sequence[Any], purpose: object = None) -> Any:
        """Choose one of some values; each purpose has turns of its own."""
        name = (tuple(among), purpose)
        left = self.left.get(name) or self.dice.sample(among, len(among))
        choice, *self.left[name] = left
        return choice


def workloads(
    phase: Phase,
    claimed: frozenset[Feature],
    dice: random.Random,
    turns: Turns,
    *,
    aligned: bool = False,
) -> Iterator[Callable[[torch.dtype], Case | None]]:
    """Yield functions that draw a case of a phase in a storage type, or None if it is too large.

    Each width of each model is run with the options of that model, if it has any, and with others
    by turns; half of the options that are claimed are met at least, but in long phases. Groups and
    the causal flag are left out if not claimed.

    Args:
        phase: the phase.
        claimed: the claimed features.
        dice: draws lengths when the functions are called.
        turns: choose options, and modes, layouts and contents when the functions are called.
        aligned: whether the causal flag lets the last query read the last key. If it does not,
            phases with more keys than queries do without it, as models must.
    """
    if phase.keys is not None and not aligned:
        claimed = claimed - {Feature.CAUSAL}
    known = ALTERNATIVES if phase.is_causal else ALTERNATIVES_WITHOUT_ORDER
    others = [each for each in known if claimed.issuperset(each)]
    models = [(model, widths) for model in phase.models for widths in model.widths]
    least = 0 if phase.is_long else -(-len(others) // 2)
    for place in range(max(len(models), least)):
        model, widths = models[place % len(models)]
        draw = functools.partial(_case, phase, model.heads, widths, claimed, turns)
        own = {
            name: value for name, value in model.options.items() if _needs(name) in {None, *claimed}
        }
        if own:
            yield functools.partial(draw, own, dice)
        if phase.is_causal or not own:
            chosen = turns.choose(others, ("options", phase.backward))
            yield functools.partial(draw, options_of(chosen, dice), dice)


def options_of(features: tuple[Feature, ...], dice: random.Random) -> dict[str, Any]:
    """Return the fields of a case that uses some features."""
    values: dict[Feature, dict[str, Any]] = {
        Feature.WINDOW: {"window": (dice.choice(SIDES), dice.choice((0, None)))},
        Feature.SINKS: {"sinks": True},
        Feature.SOFTCAP: {"softcap": dice.choice((30.0, 50.0))},
        Feature.ALIBI: {"alibi": True},
        Feature.LSE: {"return_lse": True},
        Feature.MASK: {"mask": dice.choice(MASKS)},
    }
    chosen: dict[str, Any] = {}
    for feature in features:
        chosen |= values[feature]
    return chosen


def _case(
    phase: Phase,
    numbers_of_heads: tuple[tuple[int, int], ...],
    widths: tuple[int, int],
    claimed: frozenset[Feature],
    turns: Turns,
    options: Mapping[str, Any],
    dice: random.Random,
    dtype: torch.dtype,
) -> Case | None:
    """Return a case of a model in a phase, or None if all are too large."""
    (heads, kv_heads), (d_head, d_value) = dice.choice(numbers_of_heads), widths
    if Feature.GQA not in claimed:
        kv_heads = heads
    batch = dice.choice(phase.batch)
    of_key = d_head + d_value
    scores = phase.products / (2 if phase.backward else 1) / (heads * of_key)
    longest = phase.numbers / (heads // kv_heads * of_key)
    lengths = phase.lengths(scores / batch, longest, dice)
    if lengths is None:
        batch, lengths = 1, phase.lengths(scores, longest, dice)
    if lengths is None:
        return None
    queries, keys = lengths
    numbers = kv_heads * keys * of_key
    is_cached = phase.is_causal and phase.keys is not None
    return Case(
        batch=max(1, min(batch, int(NUMBERS // numbers))),
        heads=heads,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        d_head=d_head,
        d_value=d_value,
        dtype=dtype,
        is_causal=phase.is_causal and Feature.CAUSAL in claimed,
        backward=phase.backward,
        mode=turns.choose(MODES_OF_TRAINING if phase.backward else MODES),
        layouts=layouts_by_turns(turns, phase.name, kv_heads=kv_heads, is_cached=is_cached),
        values=turns.choose(CONTENTS),
        seed=dice.randrange(2**16),
        **options,
    )


def layouts_by_turns(turns: Turns, purpose: str, *, kv_heads: int, is_cached: bool) -> Layouts:
    """Return the layouts of a call of a model, by turns.

    Args:
        turns: choose them.
        purpose: its calls have turns of their own.
        kv_heads: key/value heads; several may be views of one.
        is_cached: whether keys and values come from a cache.
    """
    layout = turns.choose(LAYOUTS, purpose)
    of_keys = turns.choose(CACHES, purpose) if is_cached else layout
    if kv_heads > 1 and turns.choose(SHARED):
        of_keys = Layout.EXPANDED  # heads of one key/value head, made by `expand`
    of_queries = Layout.EXPANDED_BATCH if turns.choose(ONE_FOR_ALL, purpose) else layout
    is_apart = of_keys is Layout.TRANSPOSED or turns.choose(VALUES_APART, purpose)
    of_values = Layout.CONTIGUOUS if is_apart else of_keys
    return Layouts(query=of_queries, key=of_keys, value=of_values)


def forms_of(case: Case) -> tuple[Case, ...]:
    """Return a case, and forms that a subject may take if it refuses it, in their order.

    Returns:
        The case, one with contiguous operands, and one with the usual scale too.
    """
    contiguous = case.but(layouts=Layouts())
    return case, contiguous, contiguous.but(scale=None)


def claimed_form(case: Case, refuses: Callable[[Case], str | None]) -> Case | None:
    """Return the first form of a case that a subject claims, or None if it refuses all."""
    return next((each for each in forms_of(case) if refuses(each) is None), None)


def scale_by_turns(turns: Turns, purpose: str, d_head: int) -> float | None:
    """Return the scale of two calls in five, which kernels for some width may not read; else None.

    Args:
        turns: choose it.
        purpose: its calls have turns of their own.
        d_head: the width of a head.
    """
    factor = turns.choose(SCALES, purpose)
    if factor == ONE:
        return 1.0
    return None if factor is None else factor * d_head**-0.5


def with_type_of_mask(case: Case, turns: Turns) -> Case:
    """Return a case whose float mask, beside 16-bit operands, is of float32 by turns."""
    mask = case.mask
    if mask is None or mask.kind is not MaskKind.FLOAT or torch.finfo(case.dtype).bits > 16:
        return case
    own = turns.choose((None, torch.float32), "dtype of a mask")
    return case.but(mask=replace(mask, dtype=own))


def _needs(option: str) -> Feature | None:
    """Return the feature that an option of a model needs; a scale needs none."""
    return None if option == "scale" else Feature(option)

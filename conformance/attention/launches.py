"""Launches: calls as large as is affordable, of every kind, width and division of the work.

A kernel chooses tiles by the width of a head, splits keys by their number and by that of heads and
requests, and packs the heads of a group into one tile. A mistake there shows in calls that exceed
several thresholds at once. So a call of each kind, width and division is as long as its cost
permits, and thereby exceeds all thresholds that an affordable call can exceed.
"""

import bisect
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from attnspec.conformance.attention.workloads import (
    ALTERNATIVES,
    MODES,
    MODES_OF_TRAINING,
    Turns,
    layouts_by_turns,
    options_of,
    scale_by_turns,
    with_type_of_mask,
)
from attnspec.spec import Case, Feature, Values

WORK = 5.2e9
"""Work of a launch, in products of float32: a fifth of a second on one core."""

THOROUGH = 4
"""Work of the launches of a thorough run, in that of others."""

LARGEST = 10
"""Work of the largest launch of a kind, over 256 heads of 64 channels, in that of others."""

SCORES = 72_000_000
"""Scores of a launch, which take 275 MiB in float32: over 512 tokens of over 256 heads."""

COPIES = 3
"""Copies of the scores that a backward pass holds, in those of a call without one."""

NUMBERS = 2**26
"""Numbers of keys and values of a launch."""

REPEATED = 2**30
"""Bytes of the keys and values of a launch for a kernel that repeats them for each query head."""

JUDGED = 2**19
"""Numbers of keys and values by which a launch is judged, once for each query head of a group."""

LEAST_JUDGED = 3
"""Query heads of a group that are judged at least."""

LONGEST = 70_000
"""Queries or keys of a launch: more than 16 bits count."""

TILES = (128, 64, 16, 1)
"""Lengths are multiples of the largest of these by turns: kernels have code for these alone."""

BESIDE = 64
"""How far the second length of two lies below the first one, at most."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Work of the parts of a call, in products of float32.

    Attributes:
        product: for each score and channel of a head and its values.
        slow: likewise in float16 on a CPU, which few have instructions for.
        score: for each score: a softmax, masks and conversions.
        number: for each number of an operand, which is drawn and laid out.
        judged: for each number of a key or value, for each head that is judged.
    """

    product: float
    slow: float
    score: float
    number: float
    judged: float


FORWARD = Costs(product=1, slow=12, score=400, number=120, judged=1000)
BACKWARD = Costs(product=3, slow=36, score=500, number=400, judged=2000)
"""Measured on calls of an attention that stores its scores, on one core."""

WIDE = 2
"""Work in float64, in that of other types: its numbers take twice the bytes."""

USUAL_STEP = 4
"""Of the common widths and divisions of common kinds, every fourth one meets in one run."""

STARTS = 240
"""Places from which steps are counted: a multiple of each number of steps."""

SHORTER = 0.6
"""The second length of three, in the first and the last one."""

SMALLER = 0.5
"""Work of a launch of a less common width or with an option, of which there are many."""

Widths = tuple[tuple[int, int], ...]
"""Widths of a head and of its values, which a kernel treats alike."""


def _alike(*widths: int) -> Widths:
    """Return widths of heads whose values are as wide."""
    return tuple((width, width) for width in widths)


WIDTHS: tuple[Widths, ...] = (
    _alike(64),
    _alike(128),
    _alike(24, 32, 40, 48, 56),
    _alike(72, 80, 88, 96),
    _alike(136, 144, 152, 160, 192),
    _alike(208, 224, 240, 256, 256),
    ((192, 128), (320, 320), (384, 384), (512, 512), (576, 512)),
)
"""Widths in a class for each choice of tiles; the last one has those of latent attention."""

COMMON_WIDTHS = WIDTHS[:2]
"""The widths of most models."""

CONTENTS = (
    *[Values.NEEDLES] * 6,
    Values.UNEVEN,
    Values.PEAKED,
    Values.CLIMBING,
    Values.PLATEAU,
)
"""Contents of launches by turns; other ones hide mistakes where scores are stored in 16 bits."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of launch.

    Attributes:
        name: its name.
        queries: the least and the largest number of queries; None for as many as affordable.
        keys: likewise of keys.
        share: queries for each key, the least and the largest, if both are as many as affordable.
        is_causal: whether queries follow one another; None for either by turns.
        backward: whether it has a backward pass.
        is_common: whether one of the common widths meets every division in each run.
        is_largest: whether each run calls over 256 heads of 64 channels with over 512 tokens, one
            head with as many as are affordable, and wide groups of 128 channels.
        step: of the other widths and divisions every `step`-th meets in one run.
    """

    name: str
    queries: tuple[int, int] | None = None
    keys: tuple[int, int] | None = None
    share: tuple[float, float] = (1, 1)
    is_causal: bool | None = False
    backward: bool = False
    is_common: bool = False
    is_largest: bool = False
    step: int = 16

    @property
    def follows(self) -> bool:
        """True if the queries follow other keys, as those of a later step of a cache do."""
        return self.queries is not None or max(self.share) < 1


KINDS = (
    Kind(name="prefill", is_causal=True, is_common=True, is_largest=True),
    Kind(name="encoding", is_largest=True),
    Kind(name="decoding", queries=(1, 1), is_common=True, step=12),
    Kind(name="speculative decoding", queries=(2, 16), is_causal=None, is_common=True),
    Kind(name="short chunks", queries=(17, 256), is_causal=None, step=12),
    Kind(name="long chunks", share=(0.25, 0.6), is_causal=None, is_common=True),
    Kind(name="few keys", keys=(16, 128)),
    Kind(name="training", is_causal=True, backward=True, is_common=True),
    Kind(name="training of encoders", backward=True),
    Kind(name="training on chunks", share=(0.3, 0.7), is_causal=None, backward=True),
    Kind(name="training on few keys", keys=(16, 128), backward=True),
    Kind(name="training on few queries", queries=(1, 16), backward=True),
)
"""The kinds of launches."""


@dataclass(frozen=True, kw_only=True)
class Division:
    """A division of the work among requests and heads.

    Attributes:
        name: its name.
        batch: numbers of requests.
        heads: numbers of (heads, kv_heads).
        work: work of its launches, in that of others.
    """

    name: str
    batch: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    work: float = 1


ONE_HEAD = Division(name="one head", batch=(1,), heads=((1, 1),), work=2.3)
"""Its calls are the longest ones."""

WIDE_GROUPS = Division(name="wide groups", batch=(1, 2), heads=((8, 1), (12, 1), (16, 1), (18, 2)))

OVER_256_HEADS = Division(name="over 256 heads", batch=(8,), heads=((33, 11), (33, 3), (34, 2)))

A_FEW_HEADS = Division(
    name="a few heads",
    batch=(1, 1, 2),
    heads=((2, 2), (2, 1), (3, 1), (5, 1), (7, 1), (6, 2), (12, 6)),
    work=1.5,
)

MANY_REQUESTS = Division(
    name="many requests", batch=(16, 17, 24), heads=((1, 1), (2, 2), (4, 1)), work=2
)

DIVISIONS = (
    ONE_HEAD,
    A_FEW_HEADS,
    WIDE_GROUPS,
    Division(name="requests of wide groups", batch=(4, 5, 8), heads=((8, 1), (12, 1), (18, 2))),
    Division(
        name="many heads", batch=(1, 2), heads=((32, 8), (40, 8), (32, 32), (64, 8), (64, 64))
    ),
    Division(name="requests of many heads", batch=(8, 9, 16), heads=((8, 8), (32, 8), (16, 16))),
    MANY_REQUESTS,
    Division(name="tens of requests", batch=(32, 48, 64), heads=((2, 1), (2, 2), (8, 1)), work=1.5),
    Division(name="very wide groups", batch=(1, 1, 2), heads=((48, 1), (71, 1), (128, 1))),
    OVER_256_HEADS,
    Division(name="over 512 heads", batch=(16, 17), heads=((33, 11), (33, 3), (34, 2))),
)
"""The divisions of the work."""

SEVERAL_HEADS = Division(
    name="several heads", batch=(2,), heads=((8, 8), (8, 2), (12, 12), (16, 4)), work=2.8
)
"""As in the smallest models; causal calls meet them once in a run, on as many tokens as are
affordable, and so do calls on few keys, as those of image models on a text."""

WIDTHS_OF_SEVERAL = _alike(16, 32, 64)

ALWAYS = {
    (WIDTHS[0], ONE_HEAD): ONE_HEAD.work,
    (WIDTHS[0], OVER_256_HEADS): LARGEST,
    (WIDTHS[1], WIDE_GROUPS): WIDE_GROUPS.work,
}
"""Work of widths and divisions that meet in every run, in kinds with the largest launches."""

ALWAYS_IN_TRAINING = {
    (WIDTHS[0], ONE_HEAD): ONE_HEAD.work,
    (WIDTHS[0], A_FEW_HEADS): 5.2,
    (WIDTHS[0], MANY_REQUESTS): MANY_REQUESTS.work,
}
"""Likewise in common kinds with a backward pass, which are called once: twelve heads of
two texts, the most of a few heads, have over 1 024 tokens."""

ONCE, AGAIN = "one call", "again"
AFTER_A_MULTIPLE, AFTER_A_SHORTER = "after a multiple of a tile", "after a shorter one"
CONTINUED, CHANGED = "after the step before", "after another of these lengths"
SEQUENCES = (
    *[ONCE] * 5,
    *(AGAIN, CHANGED, AFTER_A_MULTIPLE, AFTER_A_SHORTER, CONTINUED, CHANGED),
)
"""The calls before one of the same shape, or nearly: a kernel may keep what it has computed."""


def _scores_of(case: Case) -> int:
    return case.batch * case.heads * case.queries * case.keys


def judged_heads(case: Case) -> int:
    """Return by how many query heads of a group a call is judged."""
    of_head = case.keys * (case.d_head + case.d_value)
    return min(case.heads // case.kv_heads, max(LEAST_JUDGED, JUDGED // max(1, of_head)))


def work_of(case: Case) -> float:
    """Return the work of a call and its judgement, in products of float32."""
    costs = BACKWARD if case.backward else FORWARD
    channels = case.d_head + case.d_value
    product = costs.slow if is_slow(case.dtype, case.device) else costs.product
    scores = _scores_of(case)
    numbers = case.batch * (case.heads * case.queries + case.kv_heads * case.keys) * channels
    judged = judged_heads(case) * case.keys * channels
    wide = WIDE if case.dtype == torch.float64 else 1
    return wide * (
        scores * channels * product
        + scores * costs.score * (1 if case.mask is None else 2)
        + numbers * costs.number
        + judged * costs.judged
    )


def is_affordable(case: Case, work: float, longest: int = LONGEST) -> bool:
    """Return whether a call takes at most some work, and memory and lengths as any launch."""
    of_head = case.batch * case.keys * (case.d_head + case.d_value)
    return (
        work_of(case) <= work
        and _scores_of(case) <= SCORES / (COPIES if case.backward else 1)
        and case.kv_heads * of_head <= NUMBERS
        and case.heads * of_head * case.dtype.itemsize <= REPEATED
        and max(case.queries, case.keys) <= longest
    )


def launches(
    kind: Kind,
    claimed: frozenset[Feature],
    dtypes: Sequence[torch.dtype],
    dice: random.Random,
    turns: Turns,
    *,
    device: str = "cpu",
    is_aligned: bool = False,
    is_thorough: bool = False,
) -> Iterator[list[Case]]:
    """Yield the launches of a kind, each a sequence of one to three calls that follow one another.

    In common kinds, one of the common widths meets every second division in a run, and one head
    every fourth width; other widths meet in every `step`-th one. Each option by itself meets a
    quarter of the divisions in common kinds and an eighth in others, pairs of options half as many.
    Groups and the causal flag are left out if not claimed. In a thorough run every width meets
    every division.

    Args:
        kind: the kind.
        claimed: the claimed features.
        dtypes: the claimed storage types, which take turns.
        dice: draws sizes.
        turns: choose everything else.
        device: the device of the calls.
        is_aligned: whether the causal flag lets the last query read the last key; if it does not,
            it is not set where there are few queries, which would read few keys.
        is_thorough: whether the run is thorough; its launches take `THOROUGH` times the work.
    """
    most = WORK * (THOROUGH if is_thorough else 1)
    makes = _Launches(kind, claimed, dtypes, dice, turns, device, is_aligned, most)
    start = dice.randrange(STARTS)
    is_common_training = kind.backward and kind.is_common
    always = ALWAYS_IN_TRAINING if is_common_training else ALWAYS if kind.is_largest else {}
    for (row, widths), (column, division) in product(enumerate(WIDTHS), enumerate(DIVISIONS)):
        step = USUAL_STEP if kind.is_common and _is_usual(widths, division) else kind.step
        usual = division.work * (1 if widths in COMMON_WIDTHS else SMALLER)
        work = always.get((widths, division), usual)
        is_always = (widths, division) in always
        if is_always or is_thorough or (row + column + start) % step == 0:
            is_once = is_always and is_common_training
            yield makes.sequence(widths, division, {}, work, is_once=is_once)
    if (kind.is_causal and kind.is_common) or kind.keys is not None:
        work = LARGEST if kind.keys is None else SEVERAL_HEADS.work
        yield makes.sequence(WIDTHS_OF_SEVERAL, SEVERAL_HEADS, {}, work, is_once=True)
    quick = quick_types(dtypes, device)
    if kind.is_largest and quick:
        for dtype in dtypes:
            if dtype not in quick:
                yield makes.sequence(WIDTHS[1], ONE_HEAD, {}, 2, dtype)
    for number, features in enumerate(each for each in ALTERNATIVES if each):
        # an option by itself in a quarter of the divisions, or an eighth, and with another in fewer
        step = 4 * len(features) * (1 if kind.is_common else 2)
        for place, division in enumerate(DIVISIONS):
            if claimed.issuperset(features) and (number + place + start) % step == 0:
                options = options_of(features, dice)
                widths = turns.choose((*WIDTHS, *COMMON_WIDTHS), features)
                yield makes.sequence(widths, division, options, division.work * SMALLER)


@dataclass(frozen=True)
class _Launches:
    """Makes the launches of a kind; see `launches`."""

    kind: Kind
    claimed: Collection[Feature]
    dtypes: Sequence[torch.dtype]
    dice: random.Random
    turns: Turns
    device: str
    is_aligned: bool
    most: float

    def sequence(
        self,
        widths: Widths,
        division: Division,
        options: dict[str, Any],
        work: float,
        dtype: torch.dtype | None = None,
        is_once: bool = False,
    ) -> list[Case]:
        """Return the calls of a launch, or none if the least one is too large."""
        kind, dice, turns = self.kind, self.dice, self.turns
        sequence = ONCE
        if division is not ONE_HEAD and work < LARGEST and not is_once:
            sequence = turns.choose(SEQUENCES, (kind.name, bool(options)))
        if sequence == CONTINUED and not kind.follows:
            sequence = ONCE
        case = self.smallest(widths, division, options, dtype)
        few = dice.randint(*(kind.queries or kind.keys or (1, 1)))
        share = dice.uniform(*kind.share)

        def of_length(length: int) -> Case:
            if kind.queries is not None:
                return case.but(queries=few, keys=length)
            if kind.keys is not None:
                return case.but(queries=length, keys=few)
            return case.but(queries=max(1, round(share * length)), keys=length)

        calls = 1 if sequence == ONCE else 2
        most = self.most * work / calls
        length = largest(lambda length: is_affordable(of_length(length), most), LONGEST)
        if work < LARGEST:
            length -= dice.randrange(max(1, length // 32))
        is_multiple = sequence == AFTER_A_MULTIPLE or turns.choose((True, False), kind.name)
        if is_multiple and work < LARGEST:
            tile = next(tile for tile in TILES if tile <= max(1, length))
            # the step before ends with a tile, or this call does
            rest = few if sequence == CONTINUED and kind.queries and few < length else 0
            length = (length - rest) // tile * tile + rest
        if case.window is not None and turns.choose((True, False), "side of a window"):
            case = case.but(window=(length // 2, case.window[1]))
        lengths = [length]
        if sequence == AGAIN:
            lengths = [length, length]
        elif sequence == AFTER_A_MULTIPLE:
            lengths = [length, max(1, length - dice.randrange(1, BESIDE))]
        elif sequence == AFTER_A_SHORTER:
            lengths = [length, max(1, round(SHORTER * length)), length]
        cases = [of_length(each).but(seed=dice.randrange(2**16)) for each in lengths if each]
        if sequence == CONTINUED and cases and cases[0].queries < cases[0].keys:
            # as many queries before these keys were in the cache
            step = cases[0]
            cases.insert(0, step.but(keys=step.keys - step.queries, seed=step.seed ^ 1))
        if sequence == CHANGED and cases:
            cases.insert(0, self.changed(cases[0]).but(seed=cases[0].seed ^ 1))
        return cases

    def changed(self, case: Case) -> Case:
        """Return a call of the same lengths and query heads that differs in something else."""
        changes: list[tuple[str, Any]] = [
            ("dtype", dtype) for dtype in quick_types(self.dtypes, self.device)
        ]
        if Feature.CAUSAL in self.claimed and (self.is_aligned or case.queries >= case.keys):
            changes.append(("is_causal", not case.is_causal))
        if Feature.GQA in self.claimed:
            heads = (1, max(1, case.heads // 2), case.heads)
            changes += [("kv_heads", number) for number in heads if case.heads % number == 0]
        others = [
            case.but(**{name: value}) for name, value in changes if getattr(case, name) != value
        ]
        fitting = [each for each in others if is_affordable(each, 2 * work_of(case))]
        return self.turns.choose(fitting, "changed") if fitting else case

    def smallest(
        self,
        widths: Widths,
        division: Division,
        options: dict[str, Any],
        dtype: torch.dtype | None,
    ) -> Case:
        """Return a call with one query and key, in everything else as it will be called."""
        kind, dice, turns = self.kind, self.dice, self.turns
        heads, kv_heads = turns.choose(division.heads, kind.backward)
        if Feature.GQA not in self.claimed:
            kv_heads = heads
        d_head, d_value = turns.choose(widths, kind.backward)
        is_causal = kind.is_causal
        if is_causal is None:
            is_causal = turns.choose((True, False), kind.name)
            is_causal &= self.is_aligned or kind.queries is None
        quick = quick_types(self.dtypes, self.device)
        is_long = _is_usual(widths, division) and not options
        dtypes = quick if quick and is_long else [*self.dtypes, *quick]
        dtype = dtype or turns.choose(dtypes, kind.name)
        case = Case(
            batch=dice.choice(division.batch),
            heads=heads,
            kv_heads=kv_heads,
            d_head=d_head,
            d_value=d_value,
            dtype=dtype,
            device=self.device,
            is_causal=is_causal and Feature.CAUSAL in self.claimed,
            backward=kind.backward,
            **options,
        )
        case = varied(case, turns, kind.name, is_cached=kind.queries is not None)
        return with_type_of_mask(case, turns)


def _is_usual(widths: Widths, division: Division) -> bool:
    """Return whether launches are common ones, or the longest ones of their width or heads."""
    return widths in COMMON_WIDTHS or division in (ONE_HEAD, SEVERAL_HEADS)


def varied(case: Case, turns: Turns, purpose: str, *, is_cached: bool) -> Case:
    """Return a case in another mode, with other layouts, contents and scale, by turns.

    Args:
        case: gives everything else.
        turns: choose them.
        purpose: its calls have turns of their own.
        is_cached: whether keys and values come from a cache.
    """
    return case.but(
        mode=turns.choose(MODES_OF_TRAINING if case.backward else MODES),
        layouts=layouts_by_turns(turns, purpose, kv_heads=case.kv_heads, is_cached=is_cached),
        values=turns.choose(CONTENTS, purpose),
        scale=scale_by_turns(turns, purpose, case.d_head),
    )


def largest(fits: Callable[[int], bool], most: int) -> int:
    """Return the largest number up to `most` that fits, or 0, if all smaller ones fit too."""
    return bisect.bisect_left(range(1, most + 1), True, key=lambda number: not fits(number))


def quick_types(dtypes: Sequence[torch.dtype], device: str) -> list[torch.dtype]:
    """Return the types for the longest calls: those that the device has instructions for.

    CPUs have those for bfloat16 with AVX-512 or SVE. On others, bfloat16 still counts as quick if
    float16 is the only other type: long calls would have none.
    """
    others = [dtype for dtype in dtypes if not is_slow(dtype, device)]
    capability = torch.backends.cpu.get_cpu_capability()
    if device == "cpu" and not capability.startswith(("AVX512", "SVE")):
        return [dtype for dtype in others if dtype != torch.bfloat16] or others
    return others


def is_slow(dtype: torch.dtype, device: str) -> bool:
    """Return whether products of a type take long: few CPUs have instructions for float16."""
    return dtype == torch.float16 and device == "cpu"

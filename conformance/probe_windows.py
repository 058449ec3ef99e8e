"""The experiment on windows: which edges are read, and from which place they are counted."""

from attnspec.conformance.probe import Finding, experiment, no
from attnspec.conformance.probe_masking import alignments, picture
from attnspec.conformance.probe_rig import Reading, Rig, readings
from attnspec.spec import Feature

FORMS: tuple[tuple[tuple[int | None, int | None], bool, str], ...] = (
    (
        (3, 2),
        False,
        "case.window is not None and not case.is_causal "
        "and None not in case.window and case.window[1] > 0",
    ),
    ((3, 0), False, "case.window is not None and not case.is_causal and case.window[1] == 0"),
    ((None, 2), False, "case.window is not None and case.window[0] is None"),
    ((3, None), False, "case.window is not None and case.window[1] is None"),
    ((3, 0), True, "case.window is not None and case.is_causal"),
)
"""Windows and whether they come with `is_causal`; the cases that go where one is refused."""


@experiment("window", Feature.WINDOW)
def window(rig: Rig) -> Finding:
    """Whether both edges of a window are read, and whether `None` is unbounded."""
    question = "window"
    _ = rig.base
    missing = rig.lacks("window")
    if missing:
        return no(question, missing)
    evidence, supports, right = [], [], []
    for sides, is_causal, condition in FORMS:
        if is_causal and rig.lacks("is_causal"):
            continue
        call = rig.draw(window=sides, is_causal=is_causal)
        verdict = rig.read(call, _edges(rig, sides, is_causal))
        if verdict.is_refusal:
            supports.append([condition, f"window={sides} is refused: {verdict.problem}"])
            evidence.append(verdict.told)
            continue
        if verdict.names[:1] != ("right",):
            told = " or ".join(verdict.names) or "wrong"
            return Finding(
                question=question,
                answer=told,
                evidence=(*evidence, verdict.told + picture(rig, call)),
                deviation=f"window={sides}: {verdict.problem or told}",
            )
        right.append((sides, is_causal))
        evidence.append(verdict.told + (picture(rig, call) if len(right) == 1 else ""))
    if not right:
        return no(question, *evidence[:1])
    facts = {"features": [str(Feature.WINDOW)], "supports": supports}
    sides, is_causal = right[0]
    call = rig.draw(
        window=sides, is_causal=is_causal, queries=3 * rig.unit, keys=6 * rig.unit, seed=2
    )
    verdict = rig.read(call, alignments(rig.meant(call)))
    evidence.append(verdict.told + picture(rig, call))
    if len(verdict.names) == 1:
        facts["profile"] = {"causal_alignment": verdict.names[0]}
    elif not verdict.problem:
        return Finding(
            question=question,
            answer="wrong where queries and keys differ in number",
            evidence=tuple(evidence),
            deviation="a window follows neither alignment where there are fewer queries than keys",
        )
    where = f", {verdict.names[0]}" if len(verdict.names) == 1 else ""
    return Finding(
        question=question,
        answer=f"yes, both edges are read{where}",
        evidence=tuple(evidence),
        facts=facts,
    )


def _edges(rig: Rig, sides: tuple[int | None, int | None], is_causal: bool) -> list[Reading]:
    """What a window may mean."""
    left, right = sides
    meant = rig.meant(rig.draw(window=sides, is_causal=is_causal))
    others = {"ignored": meant.but(window=None)}
    if left is not None:
        others["the_left_edge_is_not_read"] = meant.but(window=(left - 1, right))
        others["one_key_past_the_left_edge"] = meant.but(window=(left + 1, right))
    if right:
        others["the_right_edge_is_not_read"] = meant.but(window=(left, right - 1))
    if right is not None:
        others["one_key_past_the_right_edge"] = meant.but(window=(left, right + 1))
    if left is not None and right:
        others["neither_edge_is_read"] = meant.but(window=(left - 1, right - 1))
        others["left_and_right_are_exchanged"] = meant.but(window=(right, left))
    if left is None or right is None:
        zero = (left or 0, right or 0)
        others["None_means_zero"] = meant.but(window=zero)
    if not is_causal:
        others["causal_as_well"] = meant.but(is_causal=True)
    # where two of them are the same keys, the first is as good
    return readings(meant, **others)

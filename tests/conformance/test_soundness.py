"""Soundness: what is measured is reported, and what exceeds its bound cannot be overlooked."""

import math
from dataclasses import replace

import pytest
import torch
from typer import Typer
from typer.testing import CliRunner

from attnspec.conformance import soundness, soundness_measure
from attnspec.conformance.call import Call
from attnspec.conformance.report_run import begun
from attnspec.conformance.soundness_cases import draw_call
from attnspec.conformance.soundness_measure import DTYPES, RUN, dealt, measure, measure_apart
from attnspec.conformance.soundness_report import Session, exceedances, page, summary
from attnspec.conformance.soundness_variants import VARIANTS, Variant

MADE = replace(begun(device="cpu", effort="", seed=3), seconds=90.0)
SESSION = Session(calls=8, first=3, longest=20, each=1, run=MADE, workers=2)
SHORT = ["--cases", "2", "--longest", "12", "--workers", "1"]


def halved(call, grad):
    """A wrong variant."""
    return {name: each / 2 for name, each in VARIANTS[0].run(call, grad).items()}


def app():
    typed = Typer()
    typed.command()(soundness.main)
    return typed


def test_every_variant_is_dealt_to_some_call():
    drawn = draw_call(1, torch.float32, 20)
    able = {variant.name for variant in VARIANTS if variant.takes(drawn.call)}
    assert {each.name for seed in range(32) for each in dealt(drawn, seed, 1)} == able
    assert {each.name for each in dealt(drawn, 0, None)} == able
    for seed in range(16):
        some = dealt(drawn, seed, 3)
        assert 1 <= len(some) <= 3
        assert len({variant.rounding for variant in some}) == 1


def test_two_processes_count_what_one_does():
    alone = measure(range(3, 9), longest=12, each=1)
    *_, (done, apart) = measure_apart(range(3, 9), 12, 1, workers=2, at_once=3)
    assert done == 6
    assert {key: sorted(used.shares) for key, used in apart.items()} == {
        key: sorted(used.shares) for key, used in alone.items()
    }


def test_the_page_tells_how_much_was_tried_and_how_to_repeat_it():
    count = measure(range(3, 5), longest=20, each=1)
    text = page(count, SESSION)
    assert "8 calls, 8 runs of" in text
    assert "0 beyond their bound" in text
    assert "--seed 3 --cases 2 --longest 20 --each 1" in text
    assert torch.__version__ in text
    for _, name, _ in count:
        assert f"| {name} " in text
    assert all(math.isfinite(share) for used in count.values() for share in used.shares)
    runs = sum(len(used.shares) for (kind, _, _), used in count.items() if kind == RUN)
    assert runs == 8


def test_what_exceeds_its_bound_is_told_by_call_and_place(monkeypatch):
    monkeypatch.setattr(soundness_measure, "VARIANTS", (Variant(name="halved", run=halved),))
    count = measure(range(2), DTYPES[2:3], longest=12)
    lines = exceedances(count)
    assert lines
    assert all("halved, seed" in line for line in lines)
    assert len(lines) == sum(
        share == math.inf
        for (kind, _, _), used in count.items()
        if kind != RUN
        for share in used.shares
    )
    assert f"{len(lines)} beyond their bound" in summary(count, SESSION)
    assert lines[0] in page(count, SESSION)


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_exit_status_says_whether_the_bound_held(monkeypatch, tmp_path, is_wrong):
    if is_wrong:
        monkeypatch.setattr(soundness_measure, "VARIANTS", (Variant(name="halved", run=halved),))
        found = measure(range(2), DTYPES, longest=12)
        monkeypatch.setattr(soundness, "measure_apart", lambda *_: [(2, found)])
    to = tmp_path / "new" / "page.md"
    result = CliRunner().invoke(app(), [*SHORT, "--report", str(to)])
    assert result.exit_code == (1 if is_wrong else 0), result.output
    assert ("0 beyond their bound" in to.read_text()) != is_wrong


SETTLED = {
    # dK is written before and after it is scaled
    1_006_020: (torch.bfloat16, 64, "tiles of 32, gradients written every 16 queries"),
    # derivatives of a quotient underflow, and are multiplied by the divisor again
    2_013_745: (torch.float16, 64, "dense in the storage type, softmax by hand"),
    2_001_700: (torch.float16, 256, "dense in the storage type, softmax by hand"),
    # dP and D both fit float16, and their difference does not
    3_010_979: (torch.float16, 64, "dense in the storage type, softmax by hand"),
}
"""Calls on which a correct result once exceeded its bound, by seed."""


@pytest.mark.parametrize("seed", SETTLED)
def test_what_once_exceeded_its_bound_is_settled(monkeypatch, seed):
    dtype, longest, name = SETTLED[seed]
    (variant,) = (each for each in VARIANTS if each.name == name)
    monkeypatch.setattr(soundness_measure, "VARIANTS", (variant,))
    monkeypatch.setattr(
        soundness_measure, "draw_call", lambda *given: draw_call(*given[:2], longest)
    )
    count = measure([seed], [dtype])
    assert count
    assert not exceedances(count)


def test_a_sink_without_weight_leaves_an_empty_row_at_zero():
    one = torch.ones(1, 1, 1, 4)
    call = Call(
        query=one,
        key=one,
        value=one,
        attn_mask=torch.zeros(1, 1, dtype=torch.bool),
        sinks=torch.tensor([-torch.inf]),
    )
    for variant in VARIANTS:
        if variant.takes(call):
            found = variant.run(call, None)
            assert torch.equal(found["out"], torch.zeros_like(one)), variant.name

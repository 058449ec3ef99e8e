"""Laws about history, threads and extras: who keeps them, who does not, and who says nothing."""

import sys
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

import attnspec.conformance.laws
import attnspec.conformance.mutants  # noqa: F401
from attnspec.conformance.check import check
from attnspec.conformance.effort import Effort
from attnspec.conformance.inputs import draw
from attnspec.conformance.law import registered
from attnspec.conformance.laws.tensors_extras import _compiled, _mapped, _run
from attnspec.conformance.laws.tensors_state import OPTED, _changes, _interleaved, _kinds
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.record import Outcome
from attnspec.conformance.subject import Raised, Subject
from attnspec.implementations import load
from attnspec.reference.implementation import REFERENCE
from attnspec.spec import Case, Extra, Feature, Implementation

F32 = torch.float32
EXTRAS = {
    Extra.COMPILE: registered()["a-compiled-call-gives-the-same"],
    Extra.VMAP: registered()["a-mapped-call-gives-the-same"],
    Extra.OPCHECK: registered()["operators-of-its-own-are-registered-in-full"],
}
AT_ONCE = registered()["calls-at-once-do-not-meet"]
SMALL = Case(batch=2, heads=2, kv_heads=2, queries=3, keys=5, d_head=4, d_value=4, dtype=F32)


@pytest.mark.parametrize("name", ["eager", "sdpa", "sdpa_math", "sdpa_flash", "custom_op"])
@pytest.mark.parametrize("extra", list(Extra))
def test_our_implementations_keep_what_they_declare(name: str, extra: Extra) -> None:
    implementation = load(name)
    record = check(EXTRAS[extra], Subject(implementation), Effort.SMOKE)
    is_declared = extra in implementation.extras
    assert record.outcome is (Outcome.PASSED if is_declared else Outcome.NOT_CLAIMED), (
        record.message
    )
    assert is_declared or record.reason == f"feature not claimed: {extra}"


def test_what_the_reference_does_not_declare_it_does_not_keep() -> None:
    assert not REFERENCE.extras
    for extra in (Extra.COMPILE, Extra.OPCHECK):
        declared = replace(REFERENCE, extras=frozenset({extra}))
        assert check(EXTRAS[extra], Subject(declared)).outcome is not Outcome.PASSED


def test_each_option_is_changed_and_taken_away() -> None:
    subject = Subject(REFERENCE)
    changed = {what for case in OPTED for what in _changes(subject, case, draw(case))}
    assert {
        "the window to (0, 2)",
        "the window to None",
        "softcap to 0.5",
        "softcap to None",
        "the sinks' contents",
        "the sinks' presence",
        "the slopes' contents",
        "the slopes' presence",
        "return_lse",
    } <= changed
    plain = Subject(dense("plain", Dense()))
    assert not {what for what in _changes(plain, SMALL, draw(SMALL)) if "sinks" in what}


def test_calls_of_another_kind_have_the_same_sizes() -> None:
    kinds = _kinds(SMALL)
    assert len(kinds) == 6
    for other in kinds.values():
        assert other != SMALL
        assert draw(other).query.shape == draw(SMALL).query.shape


def test_the_interleaving_of_threads_is_put_back() -> None:
    interval = sys.getswitchinterval()
    with _interleaved():
        assert sys.getswitchinterval() < interval
        torch.backends.cuda.enable_math_sdp(False)
    assert sys.getswitchinterval() == interval
    assert torch.backends.cuda.math_sdp_enabled()


def test_a_thread_that_raises_is_told_at_once() -> None:
    main = threading.main_thread()

    def attention(*operands: torch.Tensor, **options: Any) -> Any:
        if threading.current_thread() is not main and operands[0].sum() > 0:
            raise ValueError("not here")
        return Dense()(*operands, **options)

    record = check(AT_ONCE, Subject(dense("raising", attention)), Effort.SMOKE)
    assert record.outcome is Outcome.ERRORED
    assert "not here" in record.reason
    assert record.seconds["total"] < 30


def test_compiled_code_of_one_case_is_not_that_of_another() -> None:
    graphs = []

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        graphs.append(torch.compiler.is_compiling())
        out: torch.Tensor = Dense()(query, key, value)
        return out

    subject = Subject(dense("counting", attention))
    call = draw(SMALL)
    for _ in range(2):
        _run(subject, _compiled(attention), call)
    assert graphs == [True, True]


def test_what_torch_refuses_is_told_in_one_line() -> None:
    def branching(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value if query.sum() > 0 else key

    subject = Subject(Implementation(name="branching", attention=branching))
    with pytest.raises(Raised, match=r"under torch\.compile: Unsupported: .*") as caught:
        _run(subject, _compiled(branching), draw(SMALL))
    assert "\n" not in str(caught.value)
    with pytest.raises(Raised, match="under vmap over query: RuntimeError"):
        _mapped(subject, [draw(SMALL), draw(SMALL.but(seed=1))], {"query": 0})


def test_dropout_is_no_matter_of_state() -> None:
    assert all(Feature.DROPOUT not in case.features for case in (*OPTED, *AT_ONCE.pinned))

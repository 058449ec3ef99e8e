"""A call that crashes or hangs ends a copy of the process, and says how."""

import os
import signal

import pytest

from attnspec.conformance.comparison.violation import NotAvailable
from attnspec.conformance.isolation import attempt as module
from attnspec.conformance.isolation.attempt import attempt
from attnspec.conformance.isolation.process import Process, ProcessLost


def test_what_a_call_changes_is_lost_and_its_words_come_back():
    seen = []

    def make():
        seen.append("in the copy")
        return f"saw {len(seen)}"

    assert attempt(make) == "saw 1"
    assert not seen


def test_a_crash_is_told_in_words():
    assert attempt(lambda: os.kill(os.getpid(), signal.SIGSEGV)) == "its process died by SIGSEGV"


def test_a_call_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(module, "LIMIT", 0.3)

    def make():
        while True:
            pass

    assert "timed out" in attempt(make)


def test_where_no_process_can_be_copied_it_is_not_available(monkeypatch):
    monkeypatch.setattr(module, "start_method", lambda: "spawn")
    with pytest.raises(NotAvailable, match="no device in use"):
        attempt(str)


def _attempting(request, _send_note):
    """Reply what an attempt saw, made in a process that may be ended; then hang if requested."""
    words = attempt(lambda: "seen")
    while request["hangs"]:
        pass
    return words


def test_an_attempt_is_made_in_a_process_that_is_itself_watched():
    process = Process(_attempting)
    try:
        assert process.call({"hangs": False}, 10.0) == "seen"
    finally:
        process.end()


def test_a_process_is_still_watched_after_an_attempt():
    process = Process(_attempting)
    try:
        with pytest.raises(ProcessLost, match="timed out"):
            process.call({"hangs": True}, 1.5)
    finally:
        process.end()

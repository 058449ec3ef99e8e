"""Waiting: a call that hangs is named within seconds, and not only at its limit."""

import io
import os
import subprocess
import sys
import time

import pytest
from rich.console import Console

from attnspec.conformance.isolation import process
from attnspec.conformance.isolation.process import Process
from attnspec.conformance.report.progress import Progress
from attnspec.conformance.runner.waiting import telling


def slow(request, send_note):
    send_note(b"c", b"queries=1")
    time.sleep(request["seconds"])
    return "done"


def test_a_wait_is_noted_with_the_last_note_and_forgotten_at_the_reply(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "WAITING", 0.1)
    seen = []

    def describe(notes):
        seen.append(notes[b"c"])
        return "ATT-1 law on mine: queries=1"

    worker = Process(slow)
    try:
        with telling(tmp_path, 20.0, describe) as on_wait:
            assert worker.call({"seconds": 0.5}, 20.0, on_wait) == "done"
            (path,) = tmp_path.glob("*.waiting")
            assert path.name == f"{os.getpid()}.waiting"
            console = Console(file=io.StringIO(), width=400)
            progress = Progress(console)
            now = time.time()
            for seconds in (1, 5, 6, 10):
                os.utime(path, (now + seconds, now + seconds))
                progress.print_waits(tmp_path, now + seconds)
            os.utime(path, (now - 60, now - 60))
            progress.print_waits(tmp_path, now + 600)  # it has ended, and the process is killed
    finally:
        worker.end()
    (line,) = console.file.getvalue().splitlines()
    assert line.startswith("waiting since ")
    assert line.endswith(" s of at most 20 s, for ATT-1 law on mine: queries=1")
    assert seen[0] == b"queries=1"
    assert not list(tmp_path.glob("*.waiting"))


@pytest.mark.rotating(parts=3)
def test_a_hanging_call_is_named_long_before_its_limit(tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import time\n"
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "def attention(query, key, value, scale=None):\n"
        "    if query.shape[-2] == 0:\n"
        "        time.sleep(3600)\n"
        "    return scaled_dot_product_attention(query, key, value, scale=scale)\n"
        "def always(query, key, value, scale=None):\n"
        "    time.sleep(3600)\n"
    )
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli.app", "check"]
    options = ["--laws", "ATT-9", "--effort", "smoke", "-n", "1", "--timeout", "12"]
    for target in ("hanging.py:attention", "hanging.py:always"):
        done = subprocess.run(
            [*command, target, "--dtypes", "float32", *options],
            cwd=tmp_path, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 1, done.stdout + done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("waiting since ")]
        assert lines, done.stderr
        assert "timed out after 12 s" in done.stdout
        name = "ATT-9 lengths-zero-and-one on" if target.endswith("attention") else "its first call"
        assert name in lines[0]

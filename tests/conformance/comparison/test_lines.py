"""The lines of a subject's own code that calls run: which are noted, and which are missed."""

import importlib
import sys
import threading

import pytest
import torch

from attnspec.conformance.comparison.lines import RAN, STATEMENTS, Lines, missing
from attnspec.conformance.runner.check import check

SOURCE = '''"""A module."""

import torch


def attention(query, key, value, mode="plain"):
    """Attend."""
    if mode == "refused":
        raise ValueError(mode)
    if mode == "other":
        value = value + 1
        value = value + 1
    elif mode == "thread":
        in_thread(value)
    try:
        out = scaled(value)
    except TypeError:
        out = value
    for each in range(2):
        if each > 5:
            out = out * each

    def inner():
        return out

    return inner(
    ) if mode else \\
        None


def in_thread(value):
    import threading

    thread = threading.Thread(target=scaled, args=(value,))
    thread.start()
    thread.join()


def scaled(value):
    if value.ndim == 3:
        return value * 2
    return value


def never_called(value):
    return value


class Module:
    def __call__(self, query, key, value, **options):
        return attention(query, key, value, **options)


on_module = Module()
'''
LINES = SOURCE.splitlines()


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """The module, imported from a file."""
    (tmp_path / "watched_kernel.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("watched_kernel")
    sys.modules.pop("watched_kernel")


def run(function, **options):
    """Return what a call of a function finds, in a thread that nothing else traces."""
    lines = Lines.of(function)
    tensors = [torch.ones(1, 1)] * 3

    def watched():
        with lines.watched():
            function(*tensors, **options)

    thread = threading.Thread(target=watched)
    thread.start()
    thread.join()
    return lines.found()


def code_of(found):
    """Return the code of the lines that no call ran."""
    (groups,) = missing(found).values() or [[]]
    return [[LINES[line - 1].strip() for line in group] for group in groups]


def test_the_statements_of_called_functions_that_did_not_run_are_missing(kernel):
    assert code_of([run(kernel.attention)]) == [
        ["value = value + 1", "value = value + 1"],
        ["in_thread(value)", "in_thread(value)"],
        ["out = value", "out = value"],
        ["out = out * each", "out = out * each"],
        ["return value * 2", "return value * 2"],
    ]


def test_what_one_of_several_calls_runs_is_not_missing(kernel):
    found = [run(kernel.attention, mode=mode) for mode in ("plain", "other", "thread")]
    assert code_of(found) == [
        ["out = value", "out = value"],
        ["out = out * each", "out = out * each"],
        ["return value * 2", "return value * 2"],
    ]


def test_lines_that_run_in_a_thread_of_the_subject_are_noted(kernel):
    (lines,) = run(kernel.in_thread.__globals__["on_module"], mode="thread").values()
    assert lines[STATEMENTS] != lines[RAN]
    assert str(LINES.index("    return value") + 1) in lines[RAN].split(",")


def test_nothing_is_known_of_what_nobody_wrote_in_a_file():
    for function in (torch.add, print, torch.nn.functional.relu, check, threading.Thread, None):
        assert Lines.of(function) is None


def test_the_files_beside_a_module_and_those_of_its_package_are_watched(tmp_path, monkeypatch):
    for path, text in {
        "lone_kernel.py": "import lone_helper\n\ndef f():\n    lone_helper.g(0)\n",
        "lone_helper.py": "def g(x):\n    if x:\n        x = 1\n",
        "of_package/__init__.py": "",
        "of_package/kernels/__init__.py": "",
        "of_package/kernels/one.py": "from ..two import g\n\ndef f():\n    g(0)\n",
        "of_package/two.py": "def g(x):\n    if x:\n        x = 1\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name, file in (("lone_kernel", "lone_helper.py"), ("of_package.kernels.one", "two.py")):
        function = importlib.import_module(name).f
        lines = Lines.of(function)
        with lines.watched():
            function()
        assert [path.endswith(file) for path in missing([lines.found()])] == [True]


def test_another_tracer_is_left_alone(kernel):
    seen = []
    lines = Lines.of(kernel.scaled)
    tracer = seen.append
    before = sys.gettrace()
    sys.settrace(lambda *arguments: tracer(arguments[1]))
    try:
        with lines.watched():
            kernel.scaled(torch.ones(1))
    finally:
        sys.settrace(before)
    assert "call" in seen
    assert lines.found() == {}


def test_nothing_is_known_of_compiled_code(kernel):
    torch._dynamo.reset()
    lines = Lines.of(kernel.scaled)
    compiled = torch.compile(kernel.scaled, backend="eager")
    with lines.watched():
        compiled(torch.ones(3))
    assert lines.found() is None


def test_a_file_that_is_gone_or_has_changed_leaves_nothing_to_say(kernel, tmp_path):
    lines = Lines.of(kernel.scaled)
    with lines.watched():
        kernel.scaled(torch.ones(1))
    (tmp_path / "watched_kernel.py").write_text("def f(:\n")
    assert lines.found() == {}

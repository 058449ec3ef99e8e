"""Settings of all tests."""

import zlib
from collections import defaultdict

import hypothesis
import pytest
import torch
from parts import VARIABLE, fix_the_day, selected

# Two workers share the machine, and a worker that starts threads of its own slows the other.
torch.set_num_threads(1)

# The same examples on every run: the suite's own exploration is what looks for new ones.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")


def pytest_report_header() -> str:
    """Name the parts of long tests that this run takes."""
    return f"parts of long tests: {VARIABLE}={fix_the_day()}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what other days try of the tests marked `rotating`.

    Of a function these are its parameters; of a class or a module all its tests. They begin with
    another part in each of these, so that functions without parameters share the days.
    """
    parameters = defaultdict(list)
    for item in items:
        for node, mark in item.iter_markers_with_node("rotating"):
            parameters[node.nodeid.partition("[")[0], mark.kwargs.get("parts")].append(item)
    others = set()
    for (name, parts), group in parameters.items():
        count, first = parts or len(group), zlib.crc32(name.encode())
        mine = selected(count)
        others |= {item for place, item in enumerate(group, first) if place % count not in mine}
    if others:
        config.hook.pytest_deselected(items=list(others))
        items[:] = [item for item in items if item not in others]

"""Mutants leave the process as it was for the next test."""

from collections.abc import Iterator

import pytest

from attnspec.conformance.isolation.state import restored_state


@pytest.fixture(autouse=True)
def _clean_process() -> Iterator[None]:
    with restored_state():
        yield

"""The state of torch around a call."""

import importlib
import sys

import pytest
import torch

from attnspec.conformance.attention.modes import deterministic_algorithms


@pytest.mark.parametrize("has_compiler", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_deterministic_algorithms_are_requested_in_a_block_alone(before, has_compiler, monkeypatch):
    if has_compiler:
        importlib.import_module("torch._inductor.config")
    else:
        monkeypatch.delitem(sys.modules, "torch._inductor.config", raising=False)
    torch.set_deterministic_debug_mode(before)
    try:
        with deterministic_algorithms():
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.get_deterministic_debug_mode() == before
        # a second for nothing, if no function of torch is compiled
        assert ("torch._inductor.config" in sys.modules) == has_compiler
    finally:
        torch.set_deterministic_debug_mode(0)

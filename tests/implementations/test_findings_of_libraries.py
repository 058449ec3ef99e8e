"""The findings in further libraries still occur, as the pages show them: FIXED means remove it.

Code that may end its process is run in a process of its own.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attnspec.implementations.compiled import unavailable as no_compiler

PAGES = Path(__file__).parents[2] / "docs" / "findings"
FIXED = "fixed in this version: remove the finding, and what the implementation refuses"

pytestmark = [
    pytest.mark.slow,
    # each compiles C++ for ten seconds or more
    pytest.mark.rotating(parts=8),
    pytest.mark.skipif(no_compiler() is not None, reason="no C++ compiler"),
]


def run(page: str, block: int, *arguments: int) -> tuple[list[str], int]:
    """Run a block of code of a page, and return what it printed, and its exit status."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (PAGES / page).read_text("utf-8"), re.M | re.S)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-u", "-c", blocks[block], *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout.split("\n")[:-1], done.returncode


class TestTransformersEager:
    def test_a_hidden_row_is_nan_in_float16(self):
        assert run("transformers_eager.md", 0) == (["0.5", "0.0", "1.0", "nan"], 0), FIXED


class TestFlexAttention:
    def test_two_indices_give_a_wrong_result(self):
        assert run("flex_attention.md", 0, 3) == (["True", "False"], 0), FIXED

    def test_two_indices_end_the_process(self):
        printed, status = run("flex_attention.md", 0, 8)
        assert printed[:1] == ["True"]
        # what the heap does is undefined: a wrong result is as likely on another machine
        assert status < 0 or printed == ["True", "False"], FIXED

    @pytest.mark.parametrize(("queries", "keys"), [(0, 3), (3, 0)])
    def test_an_empty_call_ends_the_process(self, queries, keys):
        printed, status = run("flex_attention.md", 1, queries, keys)
        assert (printed, status < 0) == ([], True), FIXED

    def test_a_second_softcap_raises(self):
        assert run("flex_attention.md", 2) == (["right", "True"], 0), FIXED

    def test_a_mask_of_four_axes_does_not_compile_with_dynamic_shapes(self):
        assert run("flex_attention.md", 3) == (["right", "True"], 0), FIXED

    def test_nan_gives_zeros(self):
        nan, zeros = str([float("nan")] * 4), str([0.0] * 4)
        assert run("flex_attention.md", 4) == ([nan, nan, zeros, zeros], 0), FIXED

    def test_a_mask_in_float64_is_misread(self):
        assert run("flex_attention.md", 5) == (["True", "False"], 0), FIXED

    def test_masks_of_every_second_number_and_of_one_number_do_not_compile(self):
        assert run("flex_attention.md", 6) == (["right True True"] * 2, 0), FIXED

    def test_one_tensor_as_two_arguments_raises_after_a_block_mask(self):
        printed, status = run("flex_attention.md", 7)
        assert status == 0
        assert printed == ["'NoneType' object has no attribute 'q_indices'", "right"], FIXED

    def test_a_block_mask_of_padded_queries_does_not_compile(self):
        assert run("flex_attention.md", 8) == (["right", "right", "True"], 0), FIXED


class TestTransformers:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("transformers")

    def test_a_float_mask_gives_nan(self):
        assert run("transformers_flex_attention.md", 0, 3) == (["False", "True"], 0), FIXED

    def test_a_float_mask_ends_the_process(self):
        printed, status = run("transformers_flex_attention.md", 0, 8)
        assert printed[:1] == ["False"]
        assert status < 0 or printed == ["False", "True"], FIXED

    def test_the_mask_of_the_first_head_is_read_for_all(self):
        assert run("transformers_flex_attention.md", 1) == (["[0.0, 0.0]"], 0), FIXED

"""Tests of import code: executed in another interpreter, it defines the function."""

import functools
import subprocess
import sys

import pytest
import torch

from attnspec.conformance.attention.import_code import import_code_of
from attnspec.conformance.attention.subject import Subject
from attnspec.implementations import load
from attnspec.reference.implementation import scaled_dot_product_attention


class Kernels:
    """A class with a function."""

    @staticmethod
    def attention(query, key, value):
        """Return nothing."""


def defined(code):
    """Return what code defines as `attention`."""
    names = {}
    exec(code, names)
    return names["attention"]


def test_functions_of_modules_are_imported():
    code = import_code_of(scaled_dot_product_attention, "attention")
    assert code == (
        "from attnspec.reference.implementation import scaled_dot_product_attention as attention"
    )
    assert defined(code) is scaled_dot_product_attention
    function = torch.nn.functional.scaled_dot_product_attention
    assert defined(import_code_of(function, "attention")) is function
    assert import_code_of(import_code_of, "import_code_of").endswith(" import import_code_of")


def test_a_function_of_a_class_is_imported():
    assert defined(import_code_of(Kernels.attention, "attention")).__doc__ == "Return nothing."


@pytest.mark.parametrize(
    "function", [lambda query, key, value: value, functools.partial(scaled_dot_product_attention)]
)
def test_a_function_without_a_name_is_asked_for(function):
    assert import_code_of(function, "attention").startswith("# define attention here: ")


def test_a_function_of_a_script_is_run_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from attnspec.conformance.attention.import_code import import_code_of\n"
        "def mine():\n    return 7\n"
        "if __name__ == '__main__':\n    print(import_code_of(mine, 'attention'))\n"
    )
    command = [sys.executable, str(script)]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert defined(code)() == 7


def test_a_registered_implementation_is_loaded_by_name():
    assert "load('eager')" in Subject(load("eager")).import_code

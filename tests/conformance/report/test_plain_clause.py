"""Clauses as text: nothing of their source's notation is left, and no symbol is lost."""

import io
import re

import pytest
from rich.console import Console
from rich.markdown import Markdown

from attnspec.conformance.report.plain_clause import formula, plain_markdown
from attnspec.spec import all_clauses

NOTATION = re.compile(r"\\[A-Za-z]+|\$|\{[a-z]+\}`|:::|^`{3,}|\{(doctest|testsetup)", re.MULTILINE)
ESCAPES = re.compile(r"\\ud800|\\n")
"""Backslashes of Python's strings in examples."""


@pytest.mark.parametrize("identifier", list(all_clauses()))
def test_no_notation_is_left(identifier):
    stream = io.StringIO()
    console = Console(file=stream, width=100)
    console.print(Markdown(plain_markdown(all_clauses()[identifier])))
    text = ESCAPES.sub("", stream.getvalue())
    assert not NOTATION.search(text), text
    assert "MUST" in text or "MAY" in text or "SHOULD" in text


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"u_o \le 2^{-24}", "u_o ≤ 2^-24"),
        (r"\frac{e^{x_{ij}}}{\sum_{l \in S_i} e^{x_{il}}}", "e^x_ij/(∑_(l ∈ S_i) e^x_il)"),
        (r"\dfrac{1}{1 - H}", "1/(1 - H)"),
        (r"\{t\} \ne \varnothing \quad \texttt{is\_causal}", "{t} ≠ ∅; is_causal"),
        (r"\begin{cases} 0 & \texttt{zero} \\ 1 & \text{else} \end{cases}", "0, zero\n1, else"),
        (r"\operatorname{softmax}\left(x\right)", "softmax(x)"),
        (r"a \nosuchmacro b", r"a \nosuchmacro b"),
    ],
)
def test_formulas(tex, text):
    assert formula(tex) == text

"""Clauses as text for a terminal: Markdown without directives, roles or TeX."""

import functools
import re
from typing import TYPE_CHECKING, Any

from attnspec.spec import Clause

if TYPE_CHECKING:
    from pylatexenc.latex2text import LatexNodes2Text  # type: ignore[import-untyped]

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})\{(?P<directive>[a-z]+)\}(?P<argument>.*?)\n(?P<body>.*?)^(?P=ticks)$",
    re.MULTILINE | re.DOTALL,
)
_DISPLAYED = re.compile(r"\$\$(?P<tex>.*?)\$\$(?: *\((?P<label>[^)]*)\))?", re.DOTALL)
_ROLE = re.compile(r"\{(?P<role>[a-z]+)\}`(?P<text>[^`<]*?) *(?:<[^`>]*>)?`")
_FORMULA = re.compile(r"(?P<code>`[^`]*`)|\$(?P<tex>[^$]+)\$")
_GROUP = re.compile(r"(?P<mark>[_^])\{(?P<group>[^{}]*)\}")
_RELATION = re.compile(r" *([=≤≥<>⇒⇔→∈∉≈≠⊆]) *")
_SEPARATORS = re.compile(r"([,;])\s*;|^;\s*", re.MULTILINE)
_CASES = re.compile(r"\\begin\{cases\}.*?\\end\{cases\}", re.DOTALL)
_REPLACED = (
    (re.compile(r"\\q?quad\b"), "; "),
    (re.compile(r"\\operatorname\*"), r"\\operatorname"),
    (re.compile(r"\\[td]frac\b"), r"\\frac"),
    # sizes
    (re.compile(r"\\(left|right)\.|\\(left|right|textstyle|[Bb]igg?[lr]?)(?![a-z])"), ""),
    # braces that are meant, unlike those of groups
    (re.compile(r"\\\{"), "⟅"),
    (re.compile(r"\\\}"), "⟆"),
)
_MACROS = {
    "Pr": "Pr",
    "arg": "arg",
    "bmod": " mod ",
    "iff": " ⇔ ",
    "ne": " ≠ ",
    "neg": "¬",
    "operatorname": " ",
    "texttt": "%s",
    "|": "‖",
}
"""Text of macros that the converter does not know."""

_BRACES = str.maketrans("⟅⟆", "{}")
_OBJECT = re.compile(r"^:pyobject: *(?P<name>\S+)", re.MULTILINE)


def plain_markdown(clause: Clause) -> str:
    """Return the text of a clause as common Markdown, its formulas in Unicode characters."""
    parts, end = [], 0
    for match in _FENCE.finditer(clause.text):
        parts += [_prose(clause.text[end : match.start()]), _directive(match)]
        end = match.end()
    return "".join([*parts, _prose(clause.text[end:])])


def formula(tex: str) -> str:
    """Return TeX as text in Unicode characters, such as `u_o ≤ 2^-24`."""
    for macro, replacement in _REPLACED:
        tex = macro.sub(replacement, tex)
    tex = _CASES.sub(lambda match: re.sub(r"\s*&\s*", ", ", match[0]), tex)
    text = _converter().latex_to_text(tex)
    text = _GROUP.sub(lambda match: _grouped(match["mark"], match["group"]), text)
    text = text.replace("{", "").replace("}", "").translate(_BRACES)
    text = _SEPARATORS.sub(r"\1", _RELATION.sub(r" \1 ", text))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


@functools.cache
def _converter() -> "LatexNodes2Text":
    """Return a converter that keeps groups in braces, and quotients of sums in parentheses."""
    from pylatexenc.latex2text import (
        LatexNodes2Text,
        MacroTextSpec,
        get_default_latex_context_db,
    )

    def quotient(node: Any, l2tobj: Any) -> str:
        above, below = (_as_factor(l2tobj.nodelist_to_text([part])) for part in node.nodeargs[-2:])
        return f"{above}/{below}"

    context = get_default_latex_context_db()
    own = [MacroTextSpec("frac", simplify_repl=quotient)]
    own += [MacroTextSpec(name, simplify_repl=text) for name, text in _MACROS.items()]
    context.add_context_category("own", macros=own, prepend=True)
    # shown, where the converter would leave it out
    context.set_unknown_macro_spec(
        MacroTextSpec("", simplify_repl=lambda node: f"\\{node.macroname} ")
    )
    return LatexNodes2Text(
        context, math_mode="text", keep_braced_groups=True, keep_braced_groups_minlen=1
    )


def _as_factor(text: str) -> str:
    """Return a term in parentheses, unless it is a single factor."""
    text = text.strip()
    return f"({text})" if re.search(r"[ +\-−·/]", text) else text


def _grouped(mark: str, group: str) -> str:
    """Return an index or an exponent, in parentheses if it is more than a word or a number."""
    is_simple = re.fullmatch(r"[-−]?[\w,]+", group.strip())
    return mark + (group.strip() if is_simple else f"({group.strip()})")


def _directive(match: re.Match[str]) -> str:
    """Return a directive as Markdown: examples as code, included code by its name."""
    if match["directive"] == "doctest":
        return f"```python\n{match['body']}```"
    if match["directive"] == "literalinclude":
        named = _OBJECT.search(match["body"])
        path = match["argument"].strip().removeprefix("../")
        return f"Code: `{path}`" + (f", `{named['name']}`" if named else "")
    return ""


def _prose(text: str) -> str:
    """Return Markdown without code blocks, roles and formulas."""
    text = _ROLE.sub(lambda match: _reference(match["role"], match["text"]), text)
    parts, end = [], 0
    for match in _DISPLAYED.finditer(text):
        parts += [_inline(text[end : match.start()]), f"```text\n{formula(match['tex'])}\n```"]
        end = match.end()
    return "".join([*parts, _inline(text[end:])])


def _reference(role: str, text: str) -> str:
    """Return a reference as words: a formula by the clause that it is of."""
    if role == "eq":
        return f"the formula of {text.removeprefix('eq-').upper()}"
    return text


def _inline(text: str) -> str:
    """Return Markdown whose formulas are code, which no mark within them changes."""

    def replaced(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        written = f"`{' '.join(formula(match['tex']).split())}`"
        line = text[text.rfind("\n", 0, match.start()) + 1 :]
        # in a row of a table a bar would end the cell
        return written.replace("|", r"\|") if line.startswith("|") else written

    return _FORMULA.sub(replaced, text)

"""Sphinx: functions of the reference as a reader wants them.

A page that includes a function with `{literalinclude}` and `:pyobject:` shows its signature, the
first sentence of its docstring and its body; the rest of the docstring is folded below, with the
arguments in a table.
"""

import ast
import textwrap
from typing import NamedTuple

import docstrings
from building import Folded, Summary
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.directives.code import LiteralInclude
from sphinx.util.typing import ExtensionMetadata

_MARKED_UP = ("`", ":math:", "\\")
_SENTENCES = ("Returns:", "Raises:", "Source:")


class Shown(NamedTuple):
    """A function without the mark-up of its docstring, and its parts.

    Attributes:
        source: the signature, the first sentence of the docstring, and the body.
        function: the syntax tree of the function.
        first: the first sentence.
        rest: the sections of the docstring by their headings, without that sentence.
    """

    source: str
    function: ast.FunctionDef
    first: str
    rest: dict[str, list[str]]


def shown(source: str) -> Shown | None:
    """Return a function without the mark-up of its docstring.

    None is returned for a source that is no function, and for a docstring of one sentence.
    """
    source = textwrap.dedent(source)
    (function,) = ast.parse(source).body
    text = ast.get_docstring(function) if isinstance(function, ast.FunctionDef) else None
    if not isinstance(function, ast.FunctionDef) or text is None or "\n" not in text:
        return None
    node = function.body[0]
    assert node.end_lineno is not None
    rest = docstrings.sections(text.splitlines())
    first = rest[""].pop(0)
    lines = source.splitlines()
    # a sentence with mark-up is shown with the rest
    kept = [] if any(mark in first for mark in _MARKED_UP) else [f'    """{first}"""']
    lines[node.lineno - 1 : node.end_lineno] = kept
    return Shown("\n".join(lines) + "\n", function, first, rest)


def table(function: ast.FunctionDef, meanings: dict[str, str]) -> list[str]:
    """Return a table of the arguments in reStructuredText."""
    lines = [".. list-table::", "   :header-rows: 1", "   :class: arguments", ""]
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [
        *[None] * (len(positional) - len(arguments.defaults)),
        *arguments.defaults,
        *arguments.kw_defaults,
    ]
    has_defaults = any(default is not None for default in defaults)
    heads = ["argument", "type or shape", *["default"] * has_defaults, "meaning"]
    lines += [f"   {'*' if head == heads[0] else ' '} - {head}" for head in heads]
    shown_as = {arguments.vararg: "*", arguments.kwarg: "**"}
    variadic = [argument for argument in shown_as if argument is not None]
    named = [*positional, *arguments.kwonlyargs, *variadic]
    for argument, default in zip(named, [*defaults, *[None] * len(variadic)], strict=True):
        if argument.arg == "self":
            continue
        kind = "" if argument.annotation is None else type_or_shape(argument.annotation)
        lines += [f"   * - ``{shown_as.get(argument, '')}{argument.arg}``", f"     - {kind}"]
        if has_defaults:
            lines.append(f"     - {'' if default is None else f'``{ast.unparse(default)}``'}")
        lines += [
            f"     - {docstrings.as_restructured_text(meanings.get(argument.arg, ''))}",
        ]
    return lines


def type_or_shape(annotation: ast.expr) -> str:
    """Return an annotation in reStructuredText; of a tensor, its kind and shape."""
    if isinstance(annotation, ast.BinOp):
        return f"{type_or_shape(annotation.left)} or {type_or_shape(annotation.right)}"
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.slice, ast.Tuple):
        kind, elements = ast.unparse(annotation.value), annotation.slice.elts
        is_tensor = ast.unparse(elements[0]) == "torch.Tensor"
        if is_tensor and isinstance(elements[1], ast.Constant):
            return f"{kind}, ``{elements[1].value or 'scalar'}``"
    return f"``{ast.unparse(annotation)}``"


def described(function: Shown) -> list[str]:
    """Return the rest of a docstring in reStructuredText."""
    text = function.rest[""]
    if any(mark in function.first for mark in _MARKED_UP):
        text = [function.first, *text]
    lines = [*map(docstrings.as_restructured_text, text), ""]
    if "Args:" in function.rest:
        lines += [*table(function.function, docstrings.entries(function.rest["Args:"])), ""]
    for heading in _SENTENCES:
        if heading in function.rest:
            sentence = docstrings.as_restructured_text(docstrings.joined(function.rest[heading]))
            lines += [f"**{heading.rstrip(':')}** {sentence}", ""]
    if "Clauses:" in function.rest:
        clauses = docstrings.linked_clauses(docstrings.joined(function.rest["Clauses:"]))
        lines += [f"**Clauses** {clauses}", ""]
    return lines


class ReferenceCode(LiteralInclude):
    """`{literalinclude}`, which folds the docstring of an included Python function."""

    def run(self) -> list[nodes.Node]:
        """Replace the source by the one without mark-up, and add the folded part."""
        included = super().run()
        (block,) = included
        is_function = "pyobject" in self.options and self.arguments[0].endswith(".py")
        if not is_function or not isinstance(block, nodes.literal_block):
            return included
        function = shown(block.astext())
        if function is None:
            return included
        block.rawsource = function.source
        block.children[:] = []
        block += nodes.Text(function.source)
        text = ["```{eval-rst}", *described(function), "```"]
        parent = nodes.container()
        self.state.nested_parse(StringList(text, source=""), 0, parent)
        names = [heading.rstrip(":").lower() for heading in function.rest if heading]
        words = {"args": "arguments", "returns": "result", "raises": "errors"}
        summary = ", ".join(words.get(name, name) for name in names)
        name = function.function.name
        folded = Folded("", Summary("", f"{name}: {summary}"), *parent.children)
        folded["classes"] += ["docstring"]
        return [block, folded]


def setup(app: Sphinx) -> ExtensionMetadata:
    """Replace Sphinx's directive."""
    app.setup_extension("building")
    app.add_directive("literalinclude", ReferenceCode, override=True)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

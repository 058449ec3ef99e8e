"""Sphinx: API pages from docstrings, with a sentence for each field of a dataclass."""

import ast
import dataclasses
import importlib
import inspect
import textwrap
from types import FunctionType, ModuleType
from typing import Any

import docstrings
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import ExtensionMetadata

_FOREIGN = {
    *("Bool", "Float", "Float64", "Int", "Tensor", "ndarray", "jaxtyping", "torch"),
    *("_pytest", "StrEnum", "collections", "ctypes", "hypothesis", "os", "pathlib", "tiktoken"),
}
"""Names, or modules of names, without a link in signatures: the pages need no network."""
_OURS = {"Decorated", "Explore", "Gradient", "Oracle", "Wide"}
"""Type aliases of attnspec without a page."""
_AS_WRITTEN: dict[str, list[str]] = {}


def describe(
    app: Sphinx, what: str, name: str, documented: Any, options: object, lines: list[str]
) -> None:
    """Link the clauses of a docstring, and list the type, default and meaning of each field."""
    lines[:] = map(docstrings.as_restructured_text, lines)
    if what in ("attribute", "data", "property"):
        _AS_WRITTEN[name] = list(lines)
        return
    sections = docstrings.sections(lines)
    is_record = inspect.isclass(documented) and dataclasses.is_dataclass(documented)
    meanings = docstrings.entries(sections.pop("Attributes:", [])) if is_record else {}
    if "Clauses:" in sections:
        linked = docstrings.linked_clauses(docstrings.joined(sections["Clauses:"]))
        sections["Clauses:"] = [f"    {linked}", ""]
    lines.clear()
    for title, content in sections.items():
        if title == "Returns:":
            # a field list: a sentence with a colon must not be read as type and meaning
            text = textwrap.indent(textwrap.dedent("\n".join(content)).strip(), "    ")
            lines += [":returns:", *text.splitlines(), ""]
        else:
            lines += [title, *content]
    lines[:] = "\n".join(lines).strip("\n").splitlines()
    if is_record:
        lines += ["", *_fields(documented, meanings)]


def restore(
    app: Sphinx, what: str, name: str, documented: Any, options: object, lines: list[str]
) -> None:
    """Restore the sentence of an attribute: the words before its colon are not a type."""
    lines[:] = _AS_WRITTEN.pop(name, lines)


def _fields(record: type, meanings: dict[str, str]) -> list[str]:
    """Return a directive for each field, with its annotation and default as in the source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    lines: list[str] = []
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        name = node.target.id
        if name.startswith("_"):
            continue
        is_text = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        text = inspect.cleandoc(str(following.value.value)) if is_text else meanings.get(name, "")
        lines += [f".. py:attribute:: {name}", f"   :type: {ast.unparse(node.annotation)}"]
        value = _default(node.value)
        lines += [f"   :value: {value}"] if value else []
        lines += ["", *textwrap.indent(text, "   ").splitlines(), ""]
    return lines


def _default(value: ast.expr | None) -> str:
    """Return a default as in the source; for a factory, the call that makes it."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        arguments = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default_factory" in arguments:
            return f"{ast.unparse(arguments['default_factory'])}()"
        return ast.unparse(arguments["default"]) if "default" in arguments else ""
    return "" if value is None else ast.unparse(value)


class Api(SphinxDirective):
    """`{api} module` with one name a line; without names, every public one in source order."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Document each name by the directive of its kind."""
        module = importlib.import_module(self.arguments[0])
        self.env.note_dependency(str(module.__file__))
        lines = [
            line for name in [*self.content] or _public(module) for line in _automatic(module, name)
        ]
        text = ["```{eval-rst}", f".. py:currentmodule:: {module.__name__}", "", *lines, "```"]
        parent = nodes.container(classes=["api"])
        self.state.nested_parse(StringList(text, source=""), 0, parent)
        return parent.children


def _public(module: ModuleType) -> list[str]:
    """Return the public functions and classes of a module, in the order of its source."""
    numbered = [
        (inspect.getsourcelines(value)[1], name)
        for name, value in vars(module).items()
        if (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return [name for _, name in sorted(numbered)]


def _automatic(module: ModuleType, name: str) -> list[str]:
    """Return the autodoc directive for one name."""
    documented = getattr(module, name)
    options: list[str] = []
    if inspect.isclass(documented):
        kind = "exception" if issubclass(documented, Exception) else "class"
        own = vars(documented)
        if dataclasses.is_dataclass(documented):
            kinds = (property, FunctionType, classmethod, staticmethod)
            members = [
                member
                for member, value in own.items()
                if isinstance(value, kinds)
                and not member.startswith("_")
                and member not in documented.__dataclass_fields__
            ]
            options = [f"   :members: {', '.join(members)}"] if members else []
        elif hasattr(documented, "__members__"):
            options = ["   :members:", "   :undoc-members:"]
        elif kind == "class":
            options = ["   :members:"]
            options += ["   :special-members: __call__"] if "__call__" in own else []
    else:
        kind = "function" if inspect.isfunction(documented) else "data"
        options = ["   :no-value:"] if kind == "data" else []
    return [f".. auto{kind}:: {module.__name__}.{name}", *options, ""]


def without_fields(
    app: Sphinx, what: str, name: str, documented: Any, *_: Any
) -> tuple[str, str | None] | None:
    """Remove the signature of a dataclass: its fields are listed below it."""
    if what == "class" and (dataclasses.is_dataclass(documented) or _is_words(documented)):
        return "", None
    return None


def _is_words(documented: Any) -> bool:
    return getattr(documented, "_is_protocol", False) or hasattr(documented, "__members__")


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    """Link a name of attnspec to its page, whatever module it is imported from."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    last = target.rpartition(".")[2]
    if target.split(".")[0] in _FOREIGN or last in _OURS:
        return shown
    documented = env.domains.python_domain.objects
    matches = sorted(name for name in documented if name.rpartition(".")[2] == last)
    exact = [name for name in matches if not documented[name].aliased]
    if len(exact) != 1:
        return None
    entry = documented[exact[0]]
    return make_refnode(app.builder, str(node["refdoc"]), entry.docname, entry.node_id, shown)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive, and process docstrings before napoleon parses them."""
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", describe, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

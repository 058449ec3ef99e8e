"""Sphinx: the pages of the API from docstrings, each field of a dataclass with its own sentence."""

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from types import FunctionType, ModuleType
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode
from sphinx.util.typing import ExtensionMetadata

_CLAUSE = re.compile(r"\b[A-Z]{3}-[0-9]+\b")
_SECTION = re.compile(r"^[A-Z]\w+:$")
_PLURAL = re.compile(r"(`\w+`)s\b")
_DISTANCE = re.compile(r"\|(\w[^|`\\]*\w)\|")
_FOREIGN = {
    *("Bool", "Float", "Float64", "Int", "Tensor", "ndarray", "jaxtyping", "torch"),
    *("_pytest", "collections", "hypothesis", "os", "pathlib", "tiktoken"),
}
"""Names, or modules of names, that lead nowhere from a signature: the pages need no network."""
_OURS = {"Explore", "Gradient", "Oracle", "Wrong"}
"""Names of ours that say less than what they stand for."""
_AS_WRITTEN: dict[str, list[str]] = {}


def describe(
    app: Sphinx, what: str, name: str, found: Any, options: object, lines: list[str]
) -> None:
    """Link the clauses of a docstring, and say of each field its type, default and meaning."""
    lines[:] = [_DISTANCE.sub(r"\|\1\|", _PLURAL.sub(r"\1\ s", line)) for line in lines]
    if what in ("attribute", "data", "property"):
        _AS_WRITTEN[name] = list(lines)
        return
    sections = _sections(lines)
    is_record = inspect.isclass(found) and dataclasses.is_dataclass(found)
    told = _entries(sections.pop("Attributes:", [])) if is_record else {}
    if "Clauses:" in sections:
        text = " ".join(each.strip() for each in sections["Clauses:"]).strip()
        linked = _CLAUSE.sub(lambda match: f":ref:`{match[0]} <{match[0].lower()}>`", text)
        sections["Clauses:"] = [f"    {linked}", ""]
    lines.clear()
    for title, content in sections.items():
        if title == "Returns:":
            # likewise, in the form that a sentence with a colon needs
            text = textwrap.indent(textwrap.dedent("\n".join(content)).strip(), "    ")
            lines += [":returns:", *text.splitlines(), ""]
        else:
            lines += [title, *content]
    lines[:] = "\n".join(lines).strip("\n").splitlines()
    if is_record:
        lines += ["", *_fields(found, told)]


def restore(
    app: Sphinx, what: str, name: str, found: Any, options: object, lines: list[str]
) -> None:
    """Take the sentence of an attribute as it is: what stands before a colon there is no type."""
    lines[:] = _AS_WRITTEN.pop(name, lines)


def _sections(lines: list[str]) -> dict[str, list[str]]:
    """The sections of a docstring by their headings, what comes first under an empty one."""
    sections: dict[str, list[str]] = {"": []}
    into = sections[""]
    for line in lines:
        if _SECTION.match(line):
            into = sections.setdefault(line, [])
        else:
            into.append(line)
    return sections


def _entries(lines: list[str]) -> dict[str, str]:
    """`name: meaning` of an Attributes section."""
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\w+:)", textwrap.dedent("\n".join(lines)).strip()):
        name, _, meaning = entry.partition(":")
        found[name] = " ".join(meaning.split())
    return found


def _fields(record: type, told: dict[str, str]) -> list[str]:
    """A directive for each field, with its annotation and default as they are written."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    assert isinstance(tree, ast.ClassDef)
    lines: list[str] = []
    for here, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not (isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name)):
            continue
        name = here.target.id
        if name.startswith("_"):
            continue
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = inspect.cleandoc(str(after.value.value)) if is_text else told.get(name, "")
        lines += [f".. py:attribute:: {name}", f"   :type: {ast.unparse(here.annotation)}"]
        value = _default(here.value)
        lines += [f"   :value: {value}"] if value else []
        lines += ["", *textwrap.indent(text, "   ").splitlines(), ""]
    return lines


def _default(value: ast.expr | None) -> str:
    """A default as it is written; of a factory, what it makes."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        given = {each.arg: each.value for each in value.keywords}
        if "default_factory" in given:
            return f"{ast.unparse(given['default_factory'])}()"
        return ast.unparse(given["default"]) if "default" in given else ""
    return "" if value is None else ast.unparse(value)


class Api(SphinxDirective):
    """`{api} module`, and a name a line; none: every public one, in the order of the source."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Have each documented as what it is."""
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
    """What a module defines for others, in the order of its source."""
    here = [
        (inspect.getsourcelines(each)[1], name)
        for name, each in vars(module).items()
        if (inspect.isfunction(each) or inspect.isclass(each))
        and each.__module__ == module.__name__
        and not name.startswith("_")
    ]
    return [name for _, name in sorted(here)]


def _automatic(module: ModuleType, name: str) -> list[str]:
    """The directive of autodoc for one name."""
    found = getattr(module, name)
    options: list[str] = []
    if inspect.isclass(found):
        kind = "exception" if issubclass(found, Exception) else "class"
        own = vars(found)
        if dataclasses.is_dataclass(found):
            shown = (property, FunctionType, classmethod, staticmethod)
            members = [
                each
                for each, value in own.items()
                if isinstance(value, shown)
                and not each.startswith("_")
                and each not in found.__dataclass_fields__
            ]
            options = [f"   :members: {', '.join(members)}"] if members else []
        elif hasattr(found, "__members__"):
            options = ["   :members:", "   :undoc-members:"]
        elif kind == "class":
            options = ["   :members:"]
            options += ["   :special-members: __call__"] if "__call__" in own else []
    else:
        kind = "function" if inspect.isfunction(found) else "data"
        options = ["   :no-value:"] if kind == "data" else []
    return [f".. auto{kind}:: {module.__name__}.{name}", *options, ""]


def without_fields(
    app: Sphinx, what: str, name: str, found: Any, *_: Any
) -> tuple[str, str | None] | None:
    """Give a dataclass no signature: its fields stand below, one by one."""
    if what == "class" and (dataclasses.is_dataclass(found) or _is_words(found)):
        return "", None
    return None


def _is_words(found: Any) -> bool:
    return getattr(found, "_is_protocol", False) or hasattr(found, "__members__")


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, shown: nodes.TextElement
) -> nodes.Node | None:
    """Lead a name of ours to where it is documented, under whatever module it is known."""
    if node.get("refdomain") != "py":
        return None
    target = str(node["reftarget"])
    last = target.rpartition(".")[2]
    if target.split(".")[0] in _FOREIGN or last in _OURS:
        return shown
    documented = env.domains.python_domain.objects
    found = sorted(each for each in documented if each.rpartition(".")[2] == last)
    exact = [each for each in found if not documented[each].aliased]
    if len(exact) != 1:
        return None
    entry = documented[exact[0]]
    return make_refnode(app.builder, str(node["refdoc"]), entry.docname, entry.node_id, shown)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive, and hear of docstrings before they are read as Google's style."""
    app.add_directive("api", Api)
    app.connect("autodoc-process-docstring", describe, priority=400)
    app.connect("autodoc-process-docstring", restore, priority=600)
    app.connect("autodoc-process-signature", without_fields)
    app.connect("missing-reference", resolve)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

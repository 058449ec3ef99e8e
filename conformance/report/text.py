"""Clauses as HTML, with their formulas as MathML."""

import functools
import re
import xml.etree.ElementTree as ElementTree

from markupsafe import Markup, escape

from attnspec.spec import Clause, all_clauses

_FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(r"\$\$(?P<tex>.*?)\$\$(?: *\([^)]*\))?", re.DOTALL)
_INLINE = re.compile(
    r"\{[a-z]+\}`(?P<role>[^`<]*?) *(?:<[^`>]*>)?`"
    r"|`(?P<code>[^`]+)`"
    r"|\$(?P<tex>[^$]+)\$"
    r"|\*\*(?P<strong>[^*]+)\*\*"
    r"|\*(?P<em>[^*]+)\*"
)
_TEX = (
    # replace TeX that the converter does not support by TeX that it does
    (re.compile(r"\\(begin|end)\{aligned\}"), r"\\\1{align*}"),
    (re.compile(r"(\\begin\{align\*\})\s*\["), r"\1{}["),  # or the bracket is read as an option
    (re.compile(r"\\[Bb]igg?[lr]?\\([{}])"), r"\\\1"),
    (re.compile(r"\\arg(?![a-z])"), r"\\operatorname{arg}"),
)


@functools.cache
def mathml(tex: str, *, is_block: bool = False) -> Markup:
    """Return a formula as MathML, or its TeX as code if the conversion fails."""
    tex = tex.strip()
    supported = tex
    for pattern, replacement in _TEX:
        supported = pattern.sub(replacement, supported)
    try:
        from latex2mathml.converter import convert

        result = convert(supported, display="block" if is_block else "inline")
        result = re.sub(r"(?<=<mtext mathvariant=\"monospace\">).*?(?=</mtext>)", _literal, result)
        ElementTree.fromstring(result)  # raises if it is not well-formed
    except Exception:  # no error of the converter may prevent the report
        return Markup('<code class="tex">{}</code>').format(tex)
    return Markup(result)


def _literal(match: re.Match[str]) -> str:
    """Return code within a formula as HTML: undo TeX's escaped underscores, then escape it."""
    return str(escape(match[0].replace("\\_", "_")))


def _inline(text: str) -> Markup:
    """Return a paragraph of a clause as HTML."""
    parts, end = [], 0
    for match in _INLINE.finditer(text):
        parts.append(escape(text[end : match.start()]))
        end = match.end()
        if match["tex"]:
            parts.append(mathml(match["tex"]))
        elif match["role"]:
            parts.append(escape(match["role"]))
        else:
            tag = "code" if match["code"] else "strong" if match["strong"] else "em"
            inner = match["code"] or match["strong"] or match["em"]
            parts.append(Markup("<{0}>{1}</{0}>").format(Markup(tag), inner))
    return Markup("").join([*parts, escape(text[end:])])


@functools.cache
def clause_html(clause: Clause, place: str = "") -> Markup:
    """Return the sentence of a clause, its formulas and its allowed results as HTML.

    Args:
        clause: the clause.
        place: where on the page it is quoted; the labels of formulas contain it, to be unique.
    """
    label = f"of {clause.id}" + (f" in {place}" if place else "")
    text = _FENCE.sub("", clause.text)
    before, _, after = text.partition("**Allowed results.**")
    formulas = [match["tex"] for match in _FORMULA.finditer(before)]
    paragraphs = re.split(r"\n\s*\n", _FORMULA.sub("\n\n", before))
    (sentence,) = (paragraph for paragraph in paragraphs if f"**{clause.level}**" in paragraph)
    parts = [Markup("<p>{}</p>").format(_inline(" ".join(sentence.split())))]
    parts += [
        Markup('<div class="formula" tabindex="0" role="region" aria-label="{}">{}</div>').format(
            f"Formula {number} {label}", mathml(tex, is_block=True)
        )
        for number, tex in enumerate(formulas, start=1)
    ]
    allowed = " ".join(re.split(r"\n\s*\n", after, maxsplit=1)[0].split())
    if allowed:
        parts.append(Markup("<p><strong>Allowed results.</strong> {}</p>").format(_inline(allowed)))
    return Markup("\n").join(parts)


def known_clause(identifier: str) -> Clause | None:
    """Return the clause with an id, or None if this specification has none."""
    return all_clauses().get(identifier)


def order_of_clauses() -> dict[str, int]:
    """Return the position of each clause in reading order."""
    return {identifier: place for place, identifier in enumerate(all_clauses())}

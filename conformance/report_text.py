"""The text of reports: strings of strangers made harmless, and clauses with their formulas."""

import functools
import re
import xml.etree.ElementTree as ElementTree

from markupsafe import Markup, escape

from attnspec.spec import Clause, clauses

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
    # what the converter does not know, said in words that it knows
    (re.compile(r"\\(begin|end)\{aligned\}"), r"\\\1{align*}"),
    (re.compile(r"(\\begin\{align\*\})\s*\["), r"\1{}["),  # or the bracket would be an option
    (re.compile(r"\\[Bb]igg?[lr]?\\([{}])"), r"\\\1"),
    (re.compile(r"\\arg(?![a-z])"), r"\\operatorname{arg}"),
)


@functools.cache
def mathml(tex: str, *, is_block: bool = False) -> Markup:
    """A formula as MathML, or its TeX as code where that fails."""
    tex = tex.strip()
    told = tex
    for pattern, words in _TEX:
        told = pattern.sub(words, told)
    try:
        from latex2mathml.converter import convert

        found = convert(told, display="block" if is_block else "inline")
        found = re.sub(r"(?<=<mtext mathvariant=\"monospace\">).*?(?=</mtext>)", _literal, found)
        # its annotation is not shown, and repeats what stands there
        ElementTree.fromstring(found)
    except Exception:  # whatever a converter of formulas may raise, the report matters more
        return Markup('<code class="tex">{}</code>').format(tex)
    return Markup(found)


def _literal(found: re.Match[str]) -> str:
    """A word of code within a formula: TeX escapes underscores in it, and HTML other signs."""
    return str(escape(found[0].replace("\\_", "_")))


def _inline(text: str) -> Markup:
    """A paragraph of a clause as HTML."""
    parts, end = [], 0
    for found in _INLINE.finditer(text):
        parts.append(escape(text[end : found.start()]))
        end = found.end()
        if found["tex"]:
            parts.append(mathml(found["tex"]))
        elif found["role"]:
            parts.append(escape(found["role"]))
        else:
            tag = "code" if found["code"] else "strong" if found["strong"] else "em"
            inner = found["code"] or found["strong"] or found["em"]
            parts.append(Markup("<{0}>{1}</{0}>").format(Markup(tag), inner))
    return Markup("").join([*parts, escape(text[end:])])


@functools.cache
def clause_html(clause: Clause) -> Markup:
    """The sentence of a clause, its formulas, and what it allows."""
    text = _FENCE.sub("", clause.text)
    before, _, after = text.partition("**Allowed results.**")
    formulas = [found["tex"] for found in _FORMULA.finditer(before)]
    words = re.split(r"\n\s*\n", _FORMULA.sub("\n\n", before))
    (sentence,) = (each for each in words if f"**{clause.level}**" in each)
    parts = [Markup("<p>{}</p>").format(_inline(" ".join(sentence.split())))]
    parts += [
        Markup('<div class="formula">{}</div>').format(mathml(tex, is_block=True))
        for tex in formulas
    ]
    allowed = " ".join(re.split(r"\n\s*\n", after, maxsplit=1)[0].split())
    if allowed:
        parts.append(Markup("<p><strong>Allowed results.</strong> {}</p>").format(_inline(allowed)))
    return Markup("\n").join(parts)


def known_clause(identifier: str) -> Clause | None:
    """The clause of an id, where this specification has one."""
    return clauses().get(identifier)


def order_of_clauses() -> dict[str, int]:
    """The place of each clause in reading order."""
    return {identifier: place for place, identifier in enumerate(clauses())}

"""Sphinx: a figure with sliders for one attention, of numbers that the reference computes.

The page holds the products of queries and keys, and the weights for the first setting of each
control. Without JavaScript these weights stay, and the controls are hidden.
"""

import json
import math
from pathlib import Path

import torch
from attention_patterns import attention_patterns, queries_and_keys
from docutils import nodes
from docutils.parsers.rst import Directive
from jinja2 import Environment, FileSystemLoader
from repeated_words import WORDS, trained
from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

from attnspec.reference.generation import next_token_probabilities
from attnspec.reference.model import build

TEXT = ["cat", "owl", "fox", "hen", "rat", "goat", "owl", "fox", "hen", "rat", "goat", "owl"]
FIRST = (1, 1)
"""The layer and head that are shown at first."""
SHOWN = 5
"""The number of next words in the list."""

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True
)


class Interactive(nodes.raw):
    """The figure in a page."""


class Figure(Directive):
    """The figure: `interactive-attention`, without arguments."""

    def run(self) -> list[nodes.Node]:
        """Return the figure."""
        return [Interactive("", page(), format="html")]


def page() -> str:
    """Return the figure as HTML, with its numbers."""
    model = trained()
    ids = [WORDS.index(word) for word in TEXT]
    layers = queries_and_keys(model.config, model.weights, ids)
    heads = {
        f"layer {layer}, head {head}": (query[head] @ key[head].T).double()
        for layer, (query, key) in enumerate(layers)
        for head in range(len(query))
    }
    with torch.no_grad():
        logits = build(model.config, model.weights)(torch.tensor([ids]))[0].double()
    weights = attention_patterns(model.config, model.weights, ids)[FIRST]
    shares, words = next_token_probabilities(logits[-1]).topk(SHOWN)
    numbers = {
        "scale": 1 / math.sqrt(model.config.d_head),
        "products": {name: rounded(values) for name, values in heads.items()},
        "logits": rounded(logits),
        "words": WORDS,
    }
    return TEMPLATES.get_template("interactive.html.jinja").render(
        text=TEXT,
        heads=list(heads),
        first="layer {}, head {}".format(*FIRST),
        weights=weights.tolist(),
        next_words=[(WORDS[word], share) for word, share in zip(words, shares, strict=True)],
        numbers=json.dumps(numbers).replace("<", "\\u003c"),
    )


def rounded(values: torch.Tensor) -> list[list[float]]:
    """Return a matrix with three digits behind the point."""
    return [[round(value, 3) for value in row] for row in values.tolist()]


def add_files(
    app: Sphinx, name: str, template: str, context: dict[str, object], tree: nodes.document | None
) -> None:
    """Load the script and the style on pages that hold the figure, and on no other."""
    if tree is not None and next(tree.findall(Interactive), None) is not None:
        app.add_js_file("interactive.js", loading_method="defer")
        app.add_css_file("interactive.css")


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_node(Interactive)
    app.add_directive("interactive-attention", Figure)
    app.connect("html-page-context", add_files)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}

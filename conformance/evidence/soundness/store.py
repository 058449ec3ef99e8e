"""Store the shares of finished seeds, so that a long run can be made in parts and resumed.

A file holds one line of JSON for each finished run of seeds. A line counts only for a run with the
same settings and the same code of bounds and variants.
"""

import ast
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attnspec.conformance.attention import bounds
from attnspec.conformance.evidence import soundness
from attnspec.conformance.evidence.soundness.measure import DTYPES, BoundUsage, Usage

DIGITS = 4
"""Significant digits of a stored share."""

_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}


def code_digest() -> str:
    """Return a digest of the code of bounds and variants, without comments and docstrings."""
    folders = [Path(str(package.__file__)).parent for package in (bounds, soundness)]
    text = "".join(
        ast.unparse(_without_text(ast.parse(path.read_text(encoding="utf-8"))))
        for folder in folders
        for path in sorted(folder.glob("*.py"))
        if path.name not in ("__main__.py", "report.py", "store.py")
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _without_text(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            kept = [
                part
                for part in body
                if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return tree


@dataclass
class Store:
    """A file of stored shares.

    Attributes:
        path: the file, which need not exist.
        longest: the largest number of keys of the run.
        limit: the largest number of variants for one call.
        settings: what a line must have in common with the run to count for it.
    """

    path: Path
    longest: int
    limit: int | None
    settings: dict[str, object] = field(init=False)

    def __post_init__(self) -> None:
        self.settings = {
            "longest": self.longest,
            "each": self.limit or 0,
            "torch": torch.__version__,
            "code": code_digest(),
        }

    def read(self, seeds: range) -> tuple[list[int], Usage]:
        """Return those seeds that no line holds, and the shares of all others together."""
        total: Usage = defaultdict(BoundUsage)
        missing = set(seeds)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        for line in lines:
            try:
                stored = json.loads(line)
            except json.JSONDecodeError:
                continue  # a run was interrupted while it wrote this line
            held = set(stored["seeds"])
            if stored["settings"] != self.settings or not held <= missing:
                continue
            missing -= held
            for kind, variant, dtype, shares, exceeded, evident in stored["usage"]:
                used = total[kind, variant, _NAMES[dtype]]
                used.shares += shares
                used.exceeded += exceeded
                used.evident += evident
        return sorted(missing), total

    def append(self, seeds: Iterable[int], usage: Usage) -> None:
        """Append a line with the shares of some seeds."""
        line = {
            "settings": self.settings,
            "seeds": list(seeds),
            "usage": [
                [kind, variant, str(dtype).removeprefix("torch."), _shortened(used.shares), *rest]
                for (kind, variant, dtype), used in usage.items()
                for rest in [(used.exceeded, used.evident)]
            ],
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _shortened(shares: Iterable[float]) -> list[float]:
    return [float(f"{share:.{DIGITS}g}") if math.isfinite(share) else share for share in shares]

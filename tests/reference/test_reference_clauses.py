"""Every clause that a docstring of the reference cites is in the specification."""

import re
from importlib.resources import files
from pathlib import Path

CITED = re.compile(r"Clauses:\n +((?:[A-Z]{3}-\d+(?:, )?)+)\n")
STATED = re.compile(r"^#+ ([A-Z]{3}-\d+) ", re.MULTILINE)


def sources(package: str, suffix: str) -> dict[str, str]:
    """Read the files of one kind in a package, by name."""
    folder = Path(str(files(package)))
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob(f"*{suffix}")}


def test_cited_clauses_exist() -> None:
    stated = {
        clause
        for page in sources("attnspec.spec", ".md").values()
        for clause in STATED.findall(page)
    }
    families = {clause.partition("-")[0] for clause in stated}
    cited = {
        (name, clause)
        for name, text in sources("attnspec.reference", ".py").items()
        for line in CITED.findall(text)
        for clause in line.split(", ")
    }
    assert len(cited) > 30
    assert not [
        (name, clause)
        for name, clause in sorted(cited)
        if clause.partition("-")[0] in families and clause not in stated
    ]

"""Every clause that a docstring of the reference cites is in the specification."""

import re
from importlib.resources import files
from pathlib import Path

CITED = re.compile(r"Clauses:\n +((?:[A-Z]{3}-\d+(?:, )?)+)\n")
STATED = re.compile(r"^#+ ([A-Z]{3}-\d+) ", re.MULTILINE)


def sources(package: str, suffix: str) -> dict[str, str]:
    """The texts of one kind that lie in a package, by name."""
    folder = Path(str(files(package)))
    return {path.name: path.read_text(encoding="utf-8") for path in folder.glob(f"*{suffix}")}


def test_cited_clauses_exist() -> None:
    stated = {
        each for page in sources("attnspec.spec", ".md").values() for each in STATED.findall(page)
    }
    families = {each.partition("-")[0] for each in stated}
    cited = {
        (name, each)
        for name, text in sources("attnspec.reference", ".py").items()
        for line in CITED.findall(text)
        for each in line.split(", ")
    }
    assert len(cited) > 30
    assert not [
        (name, each)
        for name, each in sorted(cited)
        if each.partition("-")[0] in families and each not in stated
    ]

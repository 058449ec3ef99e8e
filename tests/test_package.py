"""The package: versions, pins, entry points and pages are consistent."""

import importlib
import re
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import attnspec
from attnspec import implementations
from attnspec.spec import CHAPTERS, SPEC_VERSION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements() -> list[Requirement]:
    """Return every requirement of pyproject.toml, once if several groups have it."""
    project = PROJECT["project"]
    lines = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        lines += extra
    for group in PROJECT["dependency-groups"].values():
        lines += [line for line in group if isinstance(line, str)]
    return [Requirement(line) for line in dict.fromkeys(lines)]


def pins() -> dict[str, str]:
    """Return the versions in constraints.txt by name."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.partition("#")[0].strip().split("==") for line in lines)
    return {canonicalize_name(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_requirement_is_pinned_within_its_bounds(requirement):
    pinned = pins()
    assert canonicalize_name(requirement.name) in pinned
    assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)])


def test_torch_is_pinned_for_every_build():
    assert "+" not in pins()["torch"]


def modules() -> list[str]:
    """Return the installed name of every module."""
    names = []
    for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            names.append(".".join((name, *parts)).removesuffix(".__init__"))
    return list(dict.fromkeys(names))


@pytest.mark.parametrize("name", modules())
def test_every_module_imports_and_has_a_docstring(name):
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # a kernel is written in it
            raise
        pytest.skip("no module triton")
    assert Path(module.__file__).is_relative_to(ROOT)
    assert module.__doc__ or not Path(module.__file__).read_text()


def test_the_installed_version_is_the_one_in_the_source():
    assert version("attnspec") == attnspec.__version__


def test_the_changelog_names_the_current_versions():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert f"Specification {SPEC_VERSION}" in headings
    assert f"Package {attnspec.__version__}" in headings


@pytest.mark.parametrize("group", ["console_scripts", "pytest11"])
def test_the_entry_points_load(group):
    (entry,) = entry_points(group=group, name="attnspec")
    assert entry.load()


def included(page, chapter, text):
    """Yield the parts of a chapter that its page includes, with figures between them."""
    for options in re.findall(rf"```{{include}} \.\./spec/{chapter}\.md\n(.*?)```\n", page, re.S):
        marks = dict(re.findall(r'^:([\w-]+): "(.*)"$', options, re.M))
        part = text
        if "start-after" in marks:
            part = part.partition(marks["start-after"])[2]
        if "end-before" in marks:
            part = part.partition(marks["end-before"])[0]
        yield part


def test_every_chapter_has_a_page_in_reading_order():
    for chapter in CHAPTERS:
        page = (ROOT / "docs" / f"{chapter}.md").read_text()
        text = (ROOT / "spec" / f"{chapter}.md").read_text()
        assert "".join(included(page, chapter, text)).split() == text.split(), chapter
    listed = re.findall(r"^\w+$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    first = listed.index(CHAPTERS[0])
    assert tuple(listed[first : first + len(CHAPTERS)]) == CHAPTERS


def test_every_chapter_shows_its_laws():
    shown = re.findall(r"^.+ <laws/(\w+)>$", (ROOT / "docs" / "laws.md").read_text(), re.M)
    assert tuple(shown) == CHAPTERS[1:]


def test_the_ci_runs_the_commands_of_the_readme():
    ci, readme = (ROOT / ".ci" / "run").read_text(), (ROOT / "README.md").read_text()
    install = "python -m pip install nox && python -m nox -s"
    for session in ("tests", "conformance"):
        assert f"{install} {session}" in readme.splitlines()
    assert f"{install} tests" in ci.splitlines()
    # every implementation at smoke, and one of them in full
    runs = [line.strip() for line in ci.splitlines() if "nox -s" in line and "conformance" in line]
    assert runs[:2] == [
        "python -m nox -s docs conformance --install-only",
        'python -m nox -s docs conformance "${beside[@]}" -- --effort smoke',
    ]
    assert runs[2].startswith('0) python -m nox -s conformance -- "${full[')


def test_the_ci_tries_known_libraries():
    ci = (ROOT / ".ci" / "run").read_text()
    (names,) = re.findall(r"^libraries=\((.*)\)$", ci, re.MULTILINE)
    assert set(names.split()) < implementations.framework_names().keys()


def test_the_ci_tries_known_implementations_in_full():
    ci = (ROOT / ".ci" / "run").read_text()
    (names,) = re.findall(r"^full=\((.*)\)$", ci, re.MULTILINE)
    known = {"reference", *implementations.names(), *implementations.model_names()}
    assert set(names.split()) == {name for name in known if not name.startswith("cuda_")}

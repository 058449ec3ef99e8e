"""The extensions on small sites: the parts that they add, and the sites that they refuse."""

import subprocess
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).parents[1] / "_ext"

CLAUSE = """\
# A chapter

(msk-1)=
## MSK-1 No future

**Enforced by** `law_a_causal_row_attends_its_prefix`.
**Since** 0.1.0.

## Words

**Enforced by** nobody.

"""
LAWS = "```{laws} masking\n```\n\n## Mutants\n\n```{planted} masking\n```\n"


@pytest.fixture
def build(tmp_path):
    """Return a function that builds a site of one page in the folder `html`."""

    def built(text, *extensions, more=""):
        (tmp_path / "index.md").write_text(text)
        (tmp_path / "conf.py").write_text(
            f"import sys\nsys.path.insert(0, {str(EXTENSIONS)!r})\n"
            f"extensions = ['myst_parser', {', '.join(map(repr, extensions))}]\n{more}"
        )
        command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
        return subprocess.run(
            [*command, str(tmp_path), str(tmp_path / "html")],
            capture_output=True,
            text=True,
            check=False,
        )

    return built


def test_a_broken_link_fails_the_build(build):
    good = build("# A page\n\n<a href='#a-page'>x</a>\n", "link_check")
    assert (good.returncode, good.stderr) == (0, "")
    bad = build("# A page\n\n<a href='nowhere.html'>x</a>\n", "link_check")
    assert bad.returncode
    assert "index.html: 'nowhere.html' leads to no file" in bad.stderr


def test_a_clause_without_laws_and_a_law_without_mutants_fail_the_build(build):
    none = "import dataclasses, laws\nreal = laws.all_clauses()\n"
    none += "one = dataclasses.replace(real['MSK-1'], enforced_by=())\n"
    none += "laws.all_clauses = lambda: real | {'MSK-1': one}\n"
    none += "laws.kills = dict\n"
    run = build("# A page\n", "laws", more=none)
    assert run.returncode
    assert "MSK-1 has no law" in run.stderr
    assert "law_finite_later_keys_change_nothing is named by no clause" in run.stderr
    assert "law_weights_sum_to_one kills no mutant" in run.stderr
    assert "ATT-1 has no law" not in run.stderr


def test_a_clause_has_a_folded_part_on_implementations(build, tmp_path):
    run = build(CLAUSE, "behaviour")
    # the targets of its links are on other pages
    assert "undefined label: 'law_a_causal_row_attends_its_prefix'" in run.stderr
    page = (tmp_path / "html" / "index.html").read_text()
    assert page.count("<details") == page.count("</details>") == 1
    inside = page.partition("<details")[2].partition("</details>")[0]
    assert "✓ pass" in inside.partition("</summary>")[0]
    assert "eager" in inside
    assert "causal mask shows one key of the future" in inside
    assert page.index("nobody") > page.index("</details>")


def test_a_law_and_its_mutants_link_to_each_other(build, tmp_path):
    build(f"# Laws\n\n{LAWS}", "laws", "highlighting", "link_check")
    page = (tmp_path / "html" / "index.html").read_text()
    assert 'id="mutant-msk-01"' in page
    assert 'href="#mutant-msk-01"' in page
    assert 'href="#law-the-diagonal-lies-where-the-profile-says"' in page
    assert "law_the_diagonal_lies_where_the_profile_says" in page
    assert 'class="reference external"' in page

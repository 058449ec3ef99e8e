"""The extensions on small sites: the parts that they add, and the sites that they refuse."""

import contextlib
import dataclasses
import io
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.cmd.build import build_main

EXTENSIONS = Path(__file__).parents[1] / "_ext"
sys.path.insert(0, str(EXTENSIONS))

import citations  # noqa: E402  (found by the line above)
import clause_index  # noqa: E402
import comparison  # noqa: E402
import evidence  # noqa: E402
import laws  # noqa: E402
import printed  # noqa: E402
import reference_code  # noqa: E402
import search_terms  # noqa: E402
import tokenizer_tables  # noqa: E402

from attnspec.conformance.subjects.kinds import SubjectKind  # noqa: E402

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
    """Return a function that builds a site of one page in the folder `html`.

    All sites are built in this process, which imports the laws and the mutants once.
    """

    def built(text, *extensions):
        (tmp_path / "index.md").write_text(text)
        (tmp_path / "conf.py").write_text(
            f"import sys\nsys.path.insert(0, {str(EXTENSIONS)!r})\n"
            f"extensions = ['myst_parser', {', '.join(map(repr, extensions))}]\n"
        )
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            status = build_main(
                ["-W", "--keep-going", "-q", "-b", "html", str(tmp_path), str(tmp_path / "html")]
            )
        return subprocess.CompletedProcess(["sphinx-build"], status, "", errors.getvalue())

    return built


def test_a_broken_link_fails_the_build(build):
    good = build("# A page\n\n<a href='#a-page'>x</a>\n", "link_check")
    assert (good.returncode, good.stderr) == (0, "")
    bad = build("# A page\n\n<a href='nowhere.html'>x</a>\n", "link_check")
    assert bad.returncode
    assert "index.html: 'nowhere.html' leads to no file" in bad.stderr


def test_a_clause_without_laws_and_a_law_without_mutants_fail_the_build(build, monkeypatch):
    real = laws.all_clauses()
    one = dataclasses.replace(real["MSK-1"], enforced_by=())
    monkeypatch.setattr(laws, "all_clauses", lambda: real | {"MSK-1": one})
    monkeypatch.setattr(laws, "kills", dict)
    run = build("# A page\n", "laws")
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


FUNCTION = '''\
import torch

def short(x):
    """Return x."""
    return x

def scaled(
    query: Float[torch.Tensor, "*batch queries"] | None,
    *,
    scale: float = 1.0,
    **settings: int,
) -> torch.Tensor:
    r"""Scale the queries.

    .. math:: s q

    Args:
        query: of any unit: as :math:`q`,
            or none.
        scale: `x`s that multiply.
        **settings: more of them.

    Returns:
        The product.

    Clauses:
        ATT-10
    """
    # why
    return query * scale
'''


def test_an_included_function_has_its_docstring_folded(build, tmp_path):
    (tmp_path / "code.py").write_text(FUNCTION)
    include = "```{{literalinclude}} code.py\n:pyobject: {}\n```\n"
    text = "# A page\n\n(att-10)=\n## ATT-10\n\n" + include.format("scaled")
    run = build(text + include.format("short"), "sphinx.ext.mathjax", "reference_code")
    assert (run.returncode, run.stderr) == (0, "")
    page = (tmp_path / "html" / "index.html").read_text()
    code, _, rest = page.partition("<details")
    folded, _, after = rest.partition("</details>")
    assert "Scale the queries." in code
    assert "# why" in code
    assert "The product." not in code
    assert "Return x." in after
    for part in (
        "<table",
        "The product.",
        'href="#att-10"',
        "*batch",
        "1.0",
        "s q",
        "more of them",
    ):
        assert part in folded, part
    assert page.count("<details") == 1


def test_a_function_keeps_all_but_the_mark_up_of_its_docstring():
    source = FUNCTION.partition("\n\n")[2].partition("\n\n")[2]
    function = reference_code.shown(source)
    namespace = {"torch": __import__("torch")}
    lines = [line.strip() for line in function.source.splitlines()]
    assert lines[-3:] == ['"""Scale the queries."""', "# why", "return query * scale"]
    namespace["Float"] = type("Float", (), {"__class_getitem__": lambda cls, item: cls})
    exec(compile(function.source, "page", "exec"), namespace)
    assert namespace["scaled"](3.0, scale=2.0) == 6.0
    assert reference_code.shown("x = 1") is None
    assert reference_code.shown('def f():\n    """One sentence."""') is None


def test_a_printed_command_is_run(build, tmp_path):
    page = "# A page\n\n```{printed} attnspec explain MSK-1\n:start-at: If\n"
    run = build(page + ":end-before: Allowed\n```\n", "printed")
    assert (run.returncode, run.stderr) == (0, "")
    text = (tmp_path / "html" / "index.html").read_text()
    assert "No future" not in text
    assert "MUST NOT" in text


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("attnspec explain MSK-1\n:start-at: Nothing", "no line begins with 'Nothing'"),
        ("attnspec explain MSK-1\n:status: 1", "exit status 0, not 1"),
        ("attnspec explain MSK-999", "exit status 2, not 0"),
    ],
)
def test_a_command_that_prints_something_else_fails_the_build(build, block, message):
    run = build(f"# A page\n\n```{{printed}} {block}\n```\n", "printed")
    assert run.returncode
    assert message in run.stderr


def test_other_commands_are_not_run():
    with pytest.raises(ValueError, match="true is not attnspec"):
        printed.ran("true", ())


def test_an_excerpt_shows_where_lines_are_left_out():
    text = "one\n two\nthree\n\nfour\n"
    assert printed.excerpt(text, "", "") == "one\n two\nthree\n\nfour"
    assert printed.excerpt(text, "three", "") == "…\nthree\n\nfour"
    assert printed.excerpt(text, "", "four") == "one\n two\nthree\n…"
    assert printed.excerpt(text, "three", "four") == "…\nthree\n…"
    with pytest.raises(ValueError, match="no line begins with 'one'"):
        printed.excerpt(text, "three", "one")


BIBLIOGRAPHY = """\
# Works

```{glossary}
Vaswani et al. 2017
  A paper.

nanoGPT
  A program.
```
"""


def test_names_of_works_link_to_the_bibliography(build, tmp_path, monkeypatch):
    (tmp_path / "bibliography.md").write_text(BIBLIOGRAPHY)
    monkeypatch.setattr(citations, "STORED", tmp_path / "bibliography.md")
    text = "# A page of nanoGPT\n\nSee Vaswani et al. 2017, `nanoGPT`, nanoGPTs and nanoGPT.\n"
    toctree = "\n```{toctree}\nbibliography\n```\n"
    run = build(text + toctree, "citations")
    assert (run.returncode, run.stderr) == (0, "")
    page = (tmp_path / "html" / "index.html").read_text()
    assert page.count('href="bibliography.html#term-') == 2


def test_the_works_of_a_page_are_read_longest_first():
    assert citations.works(BIBLIOGRAPHY) == ["Vaswani et al. 2017", "nanoGPT"]


def test_the_index_has_every_clause_with_its_sentence_and_laws():
    text = clause_index.markdown()
    for clause in clause_index.all_clauses().values():
        start = f"| {{ref}}`{clause.id} {clause.title} <{clause.id.lower()}>`"
        (row,) = [line for line in text.splitlines() if line.startswith(start)]
        assert f"**{clause.level}**" in row
        assert all(f"`{law}`" in row for law in clause.enforced_by)
        assert row.replace("\\|", "").count("|") == 5, row


def test_the_comparison_counts_every_mutant_of_attention():
    matrix = comparison.KillMatrix.read(comparison.MATRIX)
    chapters = comparison.by_chapter(matrix)
    known = comparison.mutants.load()
    stored = [each for each in matrix.of(comparison.ATTENTION) if each.mutant in known]
    assert sum(map(len, chapters.values())) == len(stored)
    cells = [entry.astext() for entry in comparison.counts(matrix).findall(comparison.nodes.entry)]
    width = 2 + len(comparison.testing_methods(matrix))
    totals = cells[-2 * width : -width]
    assert totals[0] == "all mutants of attention"
    assert totals[-1].startswith(f"{sum(bool(each.first) for each in stored)} ")


def test_the_measured_sentence_counts_what_the_laws_reject():
    matrix = comparison.KillMatrix.read(comparison.MATRIX)
    killed = sum(bool(each.first) for each in matrix.mutants)
    text = comparison.measured(matrix)
    assert f"reject {killed} of {len(matrix.mutants)} mutants" in text
    assert f"of {len(matrix.of(comparison.CORRECT))} correct" in text


def test_the_search_leaves_out_sources_and_ranks_terms_first(build, tmp_path, monkeypatch):
    (tmp_path / "laws").mkdir()
    (tmp_path / "laws" / "one.md").write_text("# Laws\n\nunsearchableword\n")
    (tmp_path / "search_terms.toml").write_text('[index]\nterms = ["multi-head"]\n')
    monkeypatch.setattr(search_terms, "STORED", tmp_path / "search_terms.toml")
    text = "# A page\n\nsearchableword\n\n```{toctree}\nlaws/one\n```\n"
    run = build(text, "search_terms")
    assert (run.returncode, run.stderr) == (0, "")
    index = (tmp_path / "html" / "searchindex.js").read_text()
    assert '"multi-head":[[0,"a-page",true]]' in index
    assert "unsearchableword" not in index.replace("searchableword", "", 1)
    (tmp_path / "search_terms.toml").write_text('[nowhere]\nterms = ["x"]\n')
    run = build(text, "search_terms")
    assert "there is no page nowhere" in run.stderr


def test_a_text_is_divided_by_each_kind_of_tokenizer():
    text = "The tokenizer reads na\u00efve  words."
    made = {each.name: each for each in tokenizer_tables.divisions(text)}
    assert list(made)[:5] == ["characters", "words", "word pieces", "unigrams", "byte pairs"]
    assert "".join(made["characters"].tokens) == text.replace("\u00ef", "[UNK]")
    assert len(made["words"].tokens) == 6
    assert made["words"].unknown == made["words"].tokens.count("[UNK]") > 0
    assert made["unigrams"].returned == text.replace("\u00ef", "[UNK]")
    assert made["byte pairs"].unknown == 0
    assert made["byte pairs"].returned == text
    for each in made.values():
        assert len(each.tokens) == len(each.ids)
        assert max(each.ids) < each.size


@pytest.mark.parametrize(
    ("text", "answers"),
    [
        ("a token", ["exactly"] * 5),
        ("a  token", ["exactly", *["but for white space"] * 2, "exactly", "exactly"]),
        ("\u0439", [*["no: unknown tokens are lost"] * 4, "exactly"]),
    ],
)
def test_the_text_that_comes_back_is_judged(text, answers):
    made = list(tokenizer_tables.divisions(text))[:5]
    assert [tokenizer_tables.comes_back(each, text) for each in made] == answers


def test_the_matrix_has_a_section_for_each_kind_of_subject():
    assert set(evidence._TITLES) == set(SubjectKind)

"""Sessions that check an attention function."""

from pathlib import Path

import nox

ATTNSPEC = "attnspec @ git+https://example.org/attnspec.git"
TARGET = "my_kernels:MINE"
REPORT = Path("conformance")


@nox.session
def conformance(session: nox.Session) -> None:
    """Try every law, or the laws that the options after `--` select."""
    session.install(ATTNSPEC, "-e", ".")
    REPORT.mkdir(exist_ok=True)
    to = ["--report", str(REPORT / "today.jsonl"), "--html", str(REPORT / "today.html")]
    session.run("attnspec", "check", TARGET, *to, *session.posargs)


@nox.session(default=False)
def compare(session: nox.Session) -> None:
    """List the changes since the report named after `--`."""
    session.install(ATTNSPEC)
    session.run("attnspec", "report", *session.posargs, str(REPORT / "today.jsonl"))

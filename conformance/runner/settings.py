"""The settings of a run: one record that command lines, pytest's options and workers share."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnspec.conformance.runner.effort import Effort

if TYPE_CHECKING:
    import pytest


OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "targets": (
        "--implementation",
        {
            "help": "a registered name, module:attribute, file.py:attribute or "
            "hub:owner/name@revision:function (may be repeated)",
            "metavar": "TARGET",
        },
    ),
    "features": ("--attnspec-features", {"help": "claims of a bare callable"}),
    "dtypes": ("--attnspec-dtypes", {"help": "storage types of a bare callable"}),
    "profile": (
        "--attnspec-profile",
        {"help": "an answer of its profile (may be repeated)", "metavar": "KEY=VALUE"},
    ),
    "extras": ("--attnspec-extras", {"help": "tools of torch that a bare callable claims"}),
    "operator": ("--attnspec-operator", {"help": "the operator that a bare callable is"}),
    "sizes": (
        "--attnspec-sizes",
        {"help": "sizes at which it is called too (may be repeated)", "metavar": "NAME=N,..."},
    ),
    "device": ("--attnspec-device", {"help": "the device on which cases are drawn"}),
    "allow_foreign_code": (
        "--attnspec-allow-foreign-code",
        {"help": "fetch and run kernels of the Hugging Face hub", "action": "store_true"},
    ),
    "effort": ("--effort", {"help": "how many cases to try", "choices": [*map(str, Effort)]}),
    "laws": ("--laws", {"help": "only matching laws, clauses, families", "metavar": "PATTERN"}),
    "seed": ("--attnspec-seed", {"help": "repeats the fresh cases of a run", "type": int}),
    "timeout": (
        "--attnspec-timeout",
        {"help": "seconds for one law", "type": float, "metavar": "S"},
    ),
    "memory": (
        "--attnspec-memory",
        {"help": "GiB of one worker; 0: no limit", "type": float, "metavar": "GiB"},
    ),
    "report": (
        "--attnspec-report",
        {"help": "write JSON lines", "type": Path, "metavar": "FILE.jsonl"},
    ),
    "html": ("--attnspec-html", {"help": "write one page", "type": Path, "metavar": "FILE"}),
    "markdown": (
        "--attnspec-markdown",
        {"help": "write Markdown", "type": Path, "metavar": "FILE"},
    ),
    "summary": (
        "--attnspec-summary",
        {"help": "append Markdown", "type": Path, "metavar": "FILE"},
    ),
    "coverage": (
        "--attnspec-coverage",
        {"help": "list the pairs of regimes that no call combines", "action": "store_true"},
    ),
    "verbose": (
        "--attnspec-verbose",
        {"help": "print every broken law, and the matrix of clauses", "action": "store_true"},
    ),
    "progress": (
        "--attnspec-progress",
        {"help": "print the progress, law by law", "action": "store_true"},
    ),
}
"""The pytest option of each setting: its flag, and what `addoption` takes."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run, as a user types them.

    Attributes:
        targets: registered names, `module:attribute`, `file.py:attribute` or
            `hub:owner/name@revision:function`; empty for all that are registered.
        features: claims about targets; see `Claims.read`.
        dtypes: claimed storage types.
        profile: claimed answers of the profile, `key=value` each.
        extras: claimed tools of torch.
        operator: the operator that a bare callable is; `None` for attention or a GPT-2.
        sizes: those at which an attention is called too, as `GivenSizes.read` takes them.
        device: the device on which cases are drawn.
        allow_foreign_code: whether kernels of the Hugging Face hub may be fetched and run.
        effort: how many cases to try.
        laws: shell patterns of laws, clauses or families, which may be given separated by commas;
            empty for all.
        seed: repeats the cases that differ from run to run.
        timeout: seconds for one law.
        memory: GiB that a worker may hold; 0 for no limit, `None` for its share of free memory.
        report: the path of the JSON lines to write.
        html: the path of the HTML page to write.
        markdown: the path of the Markdown to write.
        summary: the path of a file to append Markdown to.
        coverage: whether to list the pairs of regimes that no call combines.
        verbose: whether to print every broken law, and the matrix of clauses.
        progress: whether to print the progress of the run.
    """

    targets: tuple[str, ...] = ()
    features: str | None = None
    dtypes: str | None = None
    profile: tuple[str, ...] = ()
    extras: str | None = None
    operator: str | None = None
    sizes: tuple[str, ...] = ()
    device: str = "cpu"
    allow_foreign_code: bool = False
    effort: Effort = Effort.STANDARD
    laws: tuple[str, ...] = ()
    seed: int | None = None
    timeout: float = 600.0
    memory: float | None = None
    report: Path | None = None
    html: Path | None = None
    markdown: Path | None = None
    summary: Path | None = None
    coverage: bool = False
    verbose: bool = False
    progress: bool = False

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Settings":
        """Read settings by their names; other names and `None` are left out."""
        given = {name: value for name, value in values.items() if value is not None}
        return cls(
            **{
                each.name: _converted(each, given[each.name])
                for each in dataclasses.fields(cls)
                if each.name in given
            }
        )

    @classmethod
    def of(cls, config: "pytest.Config") -> "Settings":
        """Read the settings from pytest's options."""
        return cls.read({name: config.getoption(flag) for name, (flag, _) in OPTIONS.items()})

    def to_arguments(self) -> list[str]:
        """Return the arguments by which pytest is given these settings."""
        arguments = []
        for name, (flag, _) in OPTIONS.items():
            value = getattr(self, name)
            if isinstance(value, tuple):
                arguments += [f"{flag}={one}" for one in value]
            elif value is True:
                arguments.append(flag)
            elif value is not None and value is not False:
                value = value.absolute() if isinstance(value, Path) else value
                arguments.append(f"{flag}={value}")
        return arguments


def add_options(group: "pytest.OptionGroup") -> None:
    """Add the pytest option of each setting."""
    defaults = Settings()
    for name, (flag, option) in OPTIONS.items():
        default = getattr(defaults, name)
        if isinstance(default, tuple):
            group.addoption(flag, action="append", default=[], **option)
        else:
            group.addoption(flag, default=default, **option)


def _converted(setting: dataclasses.Field[Any], value: Any) -> Any:
    """The value of a setting in its type."""
    if setting.name == "laws":
        words = (word.strip() for each in value for word in each.split(","))
        return tuple(word for word in words if word)
    if isinstance(setting.default, tuple):
        return tuple(value)
    if isinstance(setting.default, Effort):
        return Effort(value)
    return Path(value) if OPTIONS[setting.name][1].get("type") is Path else value

"""Kernels of the Hugging Face hub as targets: code of others, at a pinned commit, by consent."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

PREFIX = "hub:"
"""The start of every target that names a kernel of the hub."""

_FORM = re.compile(
    r"hub:(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[^:@]*))?:(?P<function>[A-Za-z_]\w*)"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubError(ValueError):
    """A kernel of the hub that is named wrongly or cannot be loaded; the message names it."""


@dataclass(frozen=True, kw_only=True)
class HubKernel:
    """A function of a kernel of the hub.

    Attributes:
        repository: `owner/name`.
        function: the name of the function in the kernel's module.
        revision: the full hash of a commit, or empty if none is given.
    """

    repository: str
    function: str
    revision: str = ""

    @classmethod
    def of(cls, target: str) -> "HubKernel":
        """Read `hub:owner/name:function` or `hub:owner/name@revision:function`.

        Raises:
            HubError: for another form.
        """
        form = _FORM.fullmatch(target)
        if form is None:
            raise HubError(f"{target}: give {PREFIX}owner/name:function")
        fields = form.groupdict(default="")
        return cls(**fields)

    def __str__(self) -> str:
        """Return the target, with its revision."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repository}{revision}:{self.function}"

    @property
    def expression(self) -> str:
        """Code of the function, once `get_kernel` is imported from `kernels`."""
        trusted = f"revision={self.revision!r}, trust_remote_code=[{self.repository!r}]"
        return f"get_kernel({self.repository!r}, {trusted}).{self.function}"

    def demand_pinned(self) -> None:
        """Refuse a revision that is missing or may move.

        Raises:
            HubError: if the revision is not the full hash of a commit.
        """
        if not self.revision:
            raise HubError(
                f"{self}: give --revision, the full hash of a commit of {self.repository}, so that "
                "each run tries the same code"
            )
        if _COMMIT.fullmatch(self.revision) is None:
            raise HubError(
                f"{self}: --revision {self.revision} is not the full hash of a commit "
                "(40 hexadecimal digits): a branch or a tag can move"
            )

    def load_module(self, *, allow_foreign_code: bool) -> Any:
        """Fetch the kernel, unless it is there already, and import it.

        Args:
            allow_foreign_code: whether the user has consented to run the code.

        Raises:
            HubError: without consent, a pinned revision, or the package `kernels`; if there is no
                such kernel, none for this machine, or no network to fetch it; and if the kernel's
                own code raises.
        """
        self.demand_pinned()
        if not allow_foreign_code:
            raise HubError(
                f"{self}: this fetches and runs code of {self.repository}: read it first, and then "
                "give --allow-foreign-code"
            )
        try:
            from kernels import get_kernel
        except ImportError:
            raise HubError(
                f"{self}: loading it needs the package kernels: pip install 'attnspec[hub]'"
            ) from None
        try:
            # consent for this repository alone, and not for others that the kernel depends on
            return get_kernel(
                self.repository, revision=self.revision, trust_remote_code=[self.repository]
            )
        except Exception as error:
            raise HubError(f"{self}: cannot load it: {type(error).__name__}: {error}") from error


def is_hub_target(target: str) -> bool:
    """Return whether a target names a kernel of the hub."""
    return target.startswith(PREFIX)


def pinned(targets: Sequence[str], revision: str | None) -> tuple[str, ...]:
    """Return the targets, with a revision in those that name a kernel of the hub.

    Args:
        targets: as typed.
        revision: as typed with `--revision`.

    Raises:
        HubError: if one of them remains without the full hash of a commit, or has two; and for a
            revision without any kernel of the hub.
    """
    kernels = [target for target in targets if is_hub_target(target)]
    if revision is not None and not kernels:
        raise HubError(f"--revision {revision}: no target is {PREFIX}owner/name:function")
    written = []
    for target in targets:
        if is_hub_target(target):
            kernel = HubKernel.of(target)
            if revision is not None and kernel.revision not in ("", revision):
                raise HubError(f"{target}: --revision gives another commit, {revision}")
            kernel = replace(kernel, revision=revision or kernel.revision)
            kernel.demand_pinned()
            target = str(kernel)
        written.append(target)
    return tuple(written)

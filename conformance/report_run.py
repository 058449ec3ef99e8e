"""A run: what a report says of its own making."""

import contextlib
import dataclasses
import json
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version


@dataclass(frozen=True, kw_only=True)
class Run:
    """How the records of a report were made.

    Attributes:
        attnspec: version of the suite.
        spec: version of the specification that it holds subjects to.
        torch: version of PyTorch.
        python: version of Python.
        packages: versions of the other libraries that implementations are made of, by name.
        machine: system, processor, and the vector instructions that PyTorch uses on it.
        device: where cases were drawn, such as `cpu` or `cuda`.
        device_name: what the device calls itself; empty for a CPU.
        date: when the run began, in UTC, as ISO 8601 writes it.
        effort: how hard it looked.
        seed: from which cases are drawn that no run has drawn before; `None` where none was set.
        targets: what it was asked to judge; none stands for everything registered.
        laws: the patterns of laws that it was restricted to.
        trials: how many pairs of law and subject there were to try, as far as was known.
        seconds: wall time, once it has ended.
        ended: `complete`, `interrupted`, `stopped at the first failure`, or `partial` for a run
            that still goes on or was killed.
    """

    attnspec: str = ""
    spec: str = ""
    torch: str = ""
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)
    machine: str = ""
    device: str = "cpu"
    device_name: str = ""
    date: str = ""
    effort: str = ""
    seed: int | None = None
    targets: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    trials: int | None = None
    seconds: float | None = None
    ended: str = "partial"

    @property
    def is_complete(self) -> bool:
        """True where every trial was tried."""
        return self.ended == "complete"

    @property
    def told(self) -> str:
        """When, with what and on what it was made, as a page says it."""
        packages = "".join(f", {name} {each}" for name, each in self.packages.items())
        return (
            f"Measured on {self.date[:10]} with attnspec {self.attnspec}, specification "
            f"{self.spec}, PyTorch {self.torch}{packages}, Python {self.python} on "
            f"{self.machine}, in {(self.seconds or 0.0) / 60:.0f} minutes"
        )

    def to_json(self) -> str:
        """The first line of a report."""
        return json.dumps({"run": dataclasses.asdict(self)}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Run":
        """Read what `to_json` wrote; what a later version has added is left out.

        Raises:
            ValueError: for a line that is no run.
        """
        try:
            data = json.loads(line)["run"]
            data = {"packages": {}, **data}  # which earlier versions did not write
            known = {each.name: data[each.name] for each in dataclasses.fields(cls)}
            known["packages"] = {str(key): str(each) for key, each in known["packages"].items()}
            for name in ("targets", "laws"):
                known[name] = tuple(str(each) for each in known[name])
            for name in ("trials", "seconds", "seed"):
                if not isinstance(known[name], int | float | None):
                    raise TypeError(name)
            return cls(**known)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the header of a run: {line[:80]}") from error


def begun(
    *,
    device: str,
    effort: str,
    seed: int | None,
    targets: Iterable[str] = (),
    laws: Iterable[str] = (),
) -> Run:
    """The run that begins here and now."""
    import torch

    import attnspec
    from attnspec.spec import SPEC_VERSION

    vectors = torch.backends.cpu.get_cpu_capability()
    is_cuda = device.startswith("cuda") and torch.cuda.is_available()
    return Run(
        attnspec=attnspec.__version__,
        spec=SPEC_VERSION,
        torch=torch.__version__,
        python=platform.python_version(),
        packages=_installed("numpy", "transformers", "tokenizers", "tiktoken", "triton"),
        machine=f"{platform.system()} {platform.machine()} ({vectors})",
        device=device,
        device_name=torch.cuda.get_device_name(device) if is_cuda else "",
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        effort=effort,
        seed=seed,
        targets=tuple(targets),
        laws=tuple(laws),
    )


def _installed(*names: str) -> dict[str, str]:
    """The versions of those packages that are here."""
    found = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found

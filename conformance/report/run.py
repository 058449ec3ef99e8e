"""A run: the header of a report, which says how its records were made."""

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
    """The header of a report: how its records were made.

    Attributes:
        attnspec: version of the suite.
        spec: version of the specification.
        torch: version of PyTorch.
        python: version of Python.
        packages: versions of the other libraries that implementations use, by name.
        machine: system, processor, and the vector instructions that PyTorch uses.
        device: the device of the cases, such as `cpu` or `cuda`.
        device_name: name of the GPU; empty for a CPU.
        date: start of the run in UTC, in ISO 8601 format.
        effort: the effort level of the run.
        seed: seed of the cases that no earlier run has drawn; `None` if none was set.
        targets: the requested targets; empty for all registered ones.
        laws: the requested patterns of laws; empty for all laws.
        remarks: what was found of the targets before any law: the profile under which each is
            judged, and what experiments show.
        trials: number of planned pairs of law and subject, as far as it was known.
        seconds: wall time; `None` until the run has ended.
        ended: `complete`, `interrupted`, `stopped at the first failure`, or `partial` for a run
            that is still going on or was killed.
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
    remarks: tuple[str, ...] = ()
    trials: int | None = None
    seconds: float | None = None
    ended: str = "partial"

    @property
    def is_complete(self) -> bool:
        """Return whether every planned trial ran."""
        return self.ended == "complete"

    @property
    def summary(self) -> str:
        """Date, versions, machine and duration in one sentence, for a page."""
        packages = "".join(f", {name} {number}" for name, number in self.packages.items())
        return (
            f"Measured on {self.date[:10]} with attnspec {self.attnspec}, specification "
            f"{self.spec}, PyTorch {self.torch}{packages}, Python {self.python} on "
            f"{self.machine}, in {(self.seconds or 0.0) / 60:.0f} minutes"
        )

    def to_json(self) -> str:
        """Return the first line of a report."""
        return json.dumps({"run": dataclasses.asdict(self)}, ensure_ascii=False, allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> "Run":
        """Parse a line of `to_json`, ignoring unknown names, which later versions may add.

        Raises:
            ValueError: if the line is not the header of a run.
        """
        try:
            data = json.loads(line)["run"]
            data = {"packages": {}, "remarks": (), **data}  # earlier versions did not write them
            known = {entry.name: data[entry.name] for entry in dataclasses.fields(cls)}
            known["packages"] = {str(key): str(number) for key, number in known["packages"].items()}
            for name in ("targets", "laws", "remarks"):
                known[name] = tuple(str(item) for item in known[name])
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
    """Return the header of a run that starts now on this machine."""
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
    """Return the versions of those packages that are installed."""
    versions = {}
    for name in names:
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions

"""Every check of the project, one session each; bare `nox` runs what the CI runs.

Every session installs under `constraints.txt`, so that a run can be repeated. Environments are kept
and brought up to date by the next run; arguments after `--` go to the tool.
"""

import shutil
import zipfile
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"  # pip finds local wheels of torch by its settings
nox.options.reuse_venv = "yes"
nox.options.sessions = ["conformance", "tests", "lint", "types", "docs", "package"]

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
SETUPTOOLS = PROJECT["tool"]["setuptools"]
DOCS = ROOT / "docs"
BUILT = DOCS / "_build"
TESTS_OF_FRAMEWORKS = [
    "tests/implementations/frameworks",
    "tests/implementations/test_triton_flash.py",
    "tests/reference/test_onnx_vectors.py",
]
"""The tests that need a library which is no dependency; each skips itself without its library."""

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import attnspec
for each in pkgutil.walk_packages(attnspec.__path__, "attnspec."):
    try:
        importlib.import_module(each.name)
    except ModuleNotFoundError as error:
        if error.name not in sys.argv:
            raise
        print(each.name, "is left out: no module", error.name)
"""
"""Imports every installed module; what one lacks must be among those named."""
OPTIONAL = ["huggingface_hub", "safetensors", "tiktoken", "tokenizers", "transformers", "triton"]


def group(name: str) -> list[str]:
    """The requirements of a dependency group of pyproject.toml."""
    return list(nox.project.dependency_groups(PROJECT, name))


def install(session: nox.Session, *what: str) -> None:
    """Install under the pinned versions; modules are compiled when they are first imported."""
    session.install("-c", str(ROOT / "constraints.txt"), "--no-compile", *what)


@nox.session
def conformance(session: nox.Session) -> None:
    """Hold implementations to the specification: all of them, or those named after `--`."""
    install(session, "-e", ".[gpt2]")
    session.run("attnspec", "check", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Test the project itself."""
    install(session, "-e", ".[gpt2]", *group("tests"))
    session.run("pytest", "-n", "2", "--dist=worksteal", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    install(session, *group("lint"))
    session.run("ruff", "check", *session.posargs)
    session.run("ruff", "format", "--check", "--diff")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of the installed package."""
    # Type checkers run no import hook: a strict editable install is a tree of links that they read.
    strict = "--config-settings=editable_mode=strict"
    install(session, "-e", ".[gpt2]", strict, *group("types"))
    session.run("mypy", "-p", "attnspec", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the pages, run their examples, and look at them in a browser; see docs/_build/html."""
    install(session, "-e", ".[gpt2]", *group("docs"))
    options = ["-W", "-n", "--keep-going", "-d", str(BUILT / "doctrees")]
    # Warnings about a page are given when it is read, so every page is read every time.
    session.run("sphinx-build", "-E", "-q", "-b", "html", *options, str(DOCS), str(BUILT / "html"))
    session.run("sphinx-build", "-b", "doctest", *options, str(DOCS), str(BUILT / "doctest"))
    session.run("pytest", "-n", "2", "-rs", str(DOCS / "checks"))


FRAMEWORKS = {
    "torch": [],
    "transformers": [],
    "triton": ["triton"],
    "jax": ["jax"],
    "flax": ["flax"],
    "keras": ["keras"],
    "x-transformers": ["x-transformers"],
    "mlx": ["mlx[cpu]"],
    "onnxruntime": ["onnxruntime", "onnx"],
    "onnx": ["onnx"],
}
"""The requirements of each library of `attnspec.implementations.framework_names` that runs on CPUs.

`constraints/` pins what they need beside `constraints.txt`, which pins torch and transformers.
"""
KEPT_BY_JAX = {
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".nox" / "jax_cache"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
"""Workers share what JAX compiles, which takes two thirds of a first run, and runs keep it."""
KEPT_BY_TORCH = {"TORCHINDUCTOR_CACHE_DIR": str(ROOT / ".nox" / "inductor_cache")}
"""Code for one shape takes three seconds to compile, and a tenth of a second if it is kept."""
SETTINGS = {
    "torch": KEPT_BY_TORCH,
    "triton": {"TRITON_INTERPRET": "1"},
    "jax": KEPT_BY_JAX,
    "flax": KEPT_BY_JAX,
}
"""Environment variables of the sessions of a library: Triton's interpreter needs no GPU."""
REGISTERED = """
import sys
from attnspec.implementations import framework_names
print(*framework_names()[sys.argv[1]])
"""
"""Prints the names of the implementations of a library."""


@nox.session(default=False)
@nox.parametrize("library", [nox.param(library, id=library) for library in FRAMEWORKS])
def frameworks(session: nox.Session, library: str) -> None:
    """Check the implementations of other libraries: of all, or of those named after `--`.

    Each library has an environment of its own, and its tests run there too.
    """
    if unknown := [name for name in session.posargs if name not in FRAMEWORKS]:
        session.error(f"no library {', '.join(unknown)}; there are {', '.join(FRAMEWORKS)}")
    if session.posargs and library not in session.posargs:
        session.skip("not named after --")
    file = ROOT / "constraints" / f"{library}.txt"
    pins = ["-c", str(file)] if file.exists() else []
    install(session, *pins, "-e", ".[gpt2]", *group("tests"), *FRAMEWORKS[library])
    printed = session.run("python", "-c", REGISTERED, library, silent=True)
    session.run("pytest", "-n", "2", *TESTS_OF_FRAMEWORKS)
    checked = [*str(printed).split(), "--effort", "smoke", "-n", "2"]
    session.run("attnspec", "check", *checked, env=SETTINGS.get(library, {}))


@nox.session(reuse_venv=False)
def package(session: nox.Session) -> None:
    """Build sdist and wheel, and prove the wheel whole, alone under its name, and usable."""
    dist = Path(session.create_tmp(), "dist").resolve()
    shutil.rmtree(dist, ignore_errors=True)
    install(session, *group("package"))
    session.run("python", "-m", "build", "--outdir", str(dist), silent=True)
    (wheel,) = dist.glob("*.whl")
    compare_names(session, wheel)
    install(session, str(wheel))
    outside = Path(session.create_tmp(), "elsewhere")
    outside.mkdir(exist_ok=True)
    with session.chdir(outside):
        session.run("attnspec", "--help", silent=True)
        session.run("python", "-c", IMPORT_EVERYTHING, *OPTIONAL)
        # Whoever wrote a kernel needs no more than the core.
        session.run("attnspec", "check", "eager", "--laws", "ATT", "--effort", "smoke", "-n", "2")


def compare_names(session: nox.Session, wheel: Path) -> None:
    """Fail where a file of the packages is not in the wheel, or a top-level name is not ours."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names}
    foreign = sorted(top for top in tops if top != "attnspec" and not top.endswith(".dist-info"))
    if foreign:
        session.error(f"{wheel.name} installs {', '.join(foreign)} beside attnspec")
    data = SETUPTOOLS["package-data"]
    expected = {
        f"{prefix.replace('.', '/')}/{path.relative_to(folder).as_posix()}"
        for prefix, folder in SETUPTOOLS["package-dir"].items()
        for pattern in ("*.py", *data["*"], *data.get(prefix, ()))
        for path in Path(folder).rglob(pattern)
    }
    if missing := sorted(expected - names):
        session.error(f"{wheel.name} lacks {', '.join(missing)}")
    session.log(f"{wheel.name}: {len(expected)} files, one name")


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Try the suite on every planted bug, and print which laws see which."""
    install(session, "-e", ".[gpt2]")
    # what is asked for replaces the published matrix only where it is whole
    results = DOCS / "results"
    to = ["--report", str(results / "mutants.jsonl"), "--page", str(results / "mutants.md")]
    session.run("attnspec", "mutants", *([] if session.posargs else to), *session.posargs)


@nox.session(default=False)
def evidence(session: nox.Session) -> None:
    """Try everything, or what is named after `--`, and store what the pages tell of it."""
    install(session, "-e", ".[gpt2]")
    made = Path(session.create_tmp(), "run.jsonl").resolve()
    # A law that is broken is evidence too.
    told = ["--report", str(made), *session.posargs]
    session.run("attnspec", "check", *told, success_codes=[0, 1])
    session.run(
        "python",
        "-m",
        "attnspec.conformance.evidence.conformance_run",
        str(made),
        str(DOCS / "results"),
    )
    session.run("python", str(DOCS / "readme.py"))


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Time the suite on each implementation, and the share that is spent outside of it."""
    install(session, "-e", ".[gpt2]")
    # what is asked for replaces the published figures only where they are all of them
    to = [] if session.posargs else ["--report", str(DOCS / "results" / "bench.md")]
    session.run("python", "-m", "attnspec.conformance.evidence.benchmark", *to, *session.posargs)


@nox.session(default=False)
def soundness(session: nox.Session) -> None:
    """Measure how close correct arithmetic comes to the error bound, and that it stays within."""
    install(session, "-e", ".[gpt2]")
    # what is asked for replaces the published table only where it is as large
    to = [] if session.posargs else ["--report", str(DOCS / "results" / "soundness.md")]
    session.run("python", "-m", "attnspec.conformance.evidence.soundness", *to, *session.posargs)

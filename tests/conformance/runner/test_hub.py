"""Kernels of the Hugging Face hub: consent, a pinned commit, and a local build without network."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from attnspec.conformance.cli.app import app
from attnspec.conformance.report.file import read_report
from attnspec.conformance.runner.declare import TargetError
from attnspec.conformance.runner.hub import HubError, HubKernel, pinned
from attnspec.conformance.runner.plan import plan
from attnspec.conformance.runner.targets import resolve
from attnspec.conformance.runner.task import PlannedSubject, TypedClaims
from attnspec.spec import Feature

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TYPED = "hub:someone/plain-attention:attention"
TARGET = f"hub:someone/plain-attention@{COMMIT}:attention"

KERNEL = """
import torch

def attention(query, key, value, is_causal=False, scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=is_causal, scale=scale)
"""
METADATA = {
    "id": "plain_attention_cpu_0123456",
    "name": "plain-attention",
    "version": 1,
    "license": "Apache-2.0",
    "python-depends": [],
    "backend": {"type": "cpu"},
}

STAND_IN = """
import importlib.util
import os
from pathlib import Path

def get_kernel(repo_id, *, revision, trust_remote_code):
    assert trust_remote_code == [repo_id] and len(revision) == 40
    name, _, folder = os.environ["LOCAL_KERNELS"].partition("=")
    if name != repo_id:
        raise FileNotFoundError(f"no kernel {repo_id}")
    path = Path(folder, "build", "torch-cpu", "__init__.py")
    spec = importlib.util.spec_from_file_location("plain_attention", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
"""What attnspec uses of the package `kernels`, for an environment without it."""


def build_folder(folder, kernel=KERNEL):
    """Write a build of a kernel, as the package `kernels` lays it out."""
    build = folder / "plain-attention" / "build" / "torch-cpu"
    build.mkdir(parents=True)
    (build / "__init__.py").write_text(kernel)
    (build / "metadata.json").write_text(json.dumps(METADATA))
    return build.parent.parent


def check(folder, monkeypatch, *arguments):
    """Run `attnspec check`, with the package `kernels` or a stand-in for it."""
    if not is_installed():
        (folder / "packages").mkdir()
        (folder / "packages" / "kernels.py").write_text(STAND_IN)
        monkeypatch.setenv("PYTHONPATH", str(folder / "packages"), prepend=os.pathsep)
    monkeypatch.setenv("LOCAL_KERNELS", f"someone/plain-attention={folder / 'plain-attention'}")
    command = [sys.executable, "-P", "-m", "attnspec.conformance.cli.app", "check", *arguments]
    command += ["--laws", "ATT-2", "--effort", "smoke", "-n", "1", "--dtypes", "float32"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


def is_installed():
    try:
        import kernels  # noqa: F401
    except ImportError:
        return False
    return True


class TestNames:
    def test_a_target_is_read_and_written(self):
        kernel = HubKernel.of(TARGET)
        assert kernel == HubKernel(
            repository="someone/plain-attention", function="attention", revision=COMMIT
        )
        assert str(kernel) == TARGET
        assert str(HubKernel.of(TYPED)) == TYPED

    @pytest.mark.parametrize(
        "target",
        ["hub:", "hub:name:f", "hub:a/b", "hub:a/b:", "hub:a/b/c:f", "hub:a/b:f.g", "hub:a/b:1f"],
    )
    def test_another_form_is_refused(self, target):
        with pytest.raises(HubError, match="give hub:owner/name:function"):
            HubKernel.of(target)

    def test_the_revision_becomes_part_of_the_target(self):
        assert pinned(["eager", TYPED], COMMIT) == ("eager", TARGET)
        assert pinned([TARGET], None) == pinned([TARGET], COMMIT) == (TARGET,)
        assert pinned(["eager"], None) == ("eager",)
        assert pinned((), None) == ()

    @pytest.mark.parametrize(
        ("targets", "revision", "message"),
        [
            (
                [TYPED],
                None,
                "give --revision, the full hash of a commit of someone/plain-attention",
            ),
            ([TYPED], "main", "--revision main is not the full hash of a commit"),
            ([TYPED], COMMIT[:12], "not the full hash"),
            ([TYPED], COMMIT.upper(), "not the full hash"),
            ([TARGET], "f" * 40, "--revision gives another commit"),
            (["eager"], COMMIT, "no target is hub:owner/name:function"),
            ([], COMMIT, "no target is hub"),
        ],
    )
    def test_a_revision_that_does_not_pin_is_refused(self, targets, revision, message):
        with pytest.raises(HubError, match=message):
            pinned(targets, revision)


class TestConsent:
    @pytest.fixture(autouse=True)
    def _no_kernels(self, monkeypatch):
        def get_kernel(*arguments, **options):
            raise AssertionError("loaded without consent")

        monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=get_kernel))

    def test_nothing_is_loaded_without_it(self):
        with pytest.raises(TargetError, match="give --allow-foreign-code"):
            resolve(TARGET)
        planned = PlannedSubject(target=TARGET, name=TARGET, claims=TypedClaims(), device="cpu")
        with pytest.raises(TargetError, match="give --allow-foreign-code"):
            planned.load()
        with pytest.raises(TargetError, match="give --allow-foreign-code"):
            plan([TARGET], TypedClaims(), "cpu", limit=60, memory=None)

    def test_nor_without_a_pinned_revision(self):
        with pytest.raises(TargetError, match="give --revision"):
            resolve(TYPED, allow_foreign_code=True)

    def test_the_command_says_what_is_missing(self):
        done = CliRunner().invoke(app, ["check", TYPED])
        assert done.exit_code == 2
        assert "give --revision" in done.output


class TestLoading:
    def loads(self, monkeypatch, get_kernel):
        monkeypatch.setitem(sys.modules, "kernels", SimpleNamespace(get_kernel=get_kernel))
        return resolve(TARGET, allow_foreign_code=True)

    def test_the_kernel_is_asked_for_at_its_commit(self, monkeypatch):
        asked = []

        def get_kernel(repository, **options):
            asked.append((repository, options))
            module = SimpleNamespace()
            exec(KERNEL, vars(module))
            return module

        (loaded,) = self.loads(monkeypatch, get_kernel)
        repository = "someone/plain-attention"
        assert asked == [(repository, {"revision": COMMIT, "trust_remote_code": [repository]})]
        assert loaded.name == TARGET
        assert loaded.is_function
        assert loaded.subject.implementation.features == {Feature.CAUSAL}
        scope = {}
        exec(loaded.subject.import_code, scope)
        assert callable(scope["attention"])

    def test_without_the_package(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "kernels", None)
        with pytest.raises(TargetError, match=r"needs the package kernels: .*attnspec\[hub\]"):
            resolve(TARGET, allow_foreign_code=True)

    @pytest.mark.parametrize("error", [FileNotFoundError, ValueError, RuntimeError, ImportError])
    def test_without_such_a_kernel(self, monkeypatch, error):
        def get_kernel(repository, **options):
            raise error("no build variant for this system")

        message = f"cannot load it: {error.__name__}: no build variant"
        with pytest.raises(TargetError, match=message):
            self.loads(monkeypatch, get_kernel)

    def test_without_such_a_function(self, monkeypatch):
        with pytest.raises(TargetError, match=r"has no attribute 'attention'.*attentions"):
            self.loads(monkeypatch, lambda repository, **options: SimpleNamespace(attentions=1))

    def test_a_kernel_that_ends_the_process_is_reported(self, monkeypatch):
        def get_kernel(repository, **options):
            raise SystemExit(3)

        with pytest.raises(TargetError, match="SystemExit: 3"):
            self.loads(monkeypatch, get_kernel)


class TestALocalBuild:
    """By `LOCAL_KERNELS`, the variable of the package that puts a folder in place of the hub."""

    ARGUMENTS = (TYPED, "--revision", COMMIT, "--allow-foreign-code")

    @pytest.mark.rotating(parts=4)
    def test_it_conforms(self, tmp_path, monkeypatch):
        build_folder(tmp_path)
        done = check(tmp_path, monkeypatch, *self.ARGUMENTS, "--report", "report.jsonl")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{TARGET}: conforming in all of 1 laws" in done.stdout
        assert read_report(tmp_path / "report.jsonl").run.targets == (TARGET,)

    @pytest.mark.rotating(parts=4)
    def test_a_wrong_one_does_not(self, tmp_path, monkeypatch):
        build_folder(tmp_path, KERNEL.replace("scale=scale)", "scale=scale) * 1.01"))
        done = check(tmp_path, monkeypatch, *self.ARGUMENTS)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "from kernels import get_kernel; attention = get_kernel(" in done.stdout

    @pytest.mark.rotating(parts=4)
    def test_one_that_is_not_there(self, tmp_path, monkeypatch):
        build_folder(tmp_path)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        target = "hub:someone/another:attention"
        done = check(tmp_path, monkeypatch, target, *self.ARGUMENTS[1:])
        assert done.returncode == 2, done.stdout + done.stderr
        assert f"hub:someone/another@{COMMIT}:attention: cannot load it" in done.stderr

    def test_without_consent(self, tmp_path, monkeypatch):
        build_folder(tmp_path, "raise AssertionError('loaded without consent')")
        done = check(tmp_path, monkeypatch, *self.ARGUMENTS[:-1])
        assert done.returncode == 2, done.stdout + done.stderr
        assert "give --allow-foreign-code" in done.stderr
        assert "loaded without consent" not in done.stdout + done.stderr

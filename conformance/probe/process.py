"""The probe in a subprocess: a target that hangs or crashes costs only one experiment."""

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from attnspec.conformance.isolation.process import Process, ProcessLost, SendNote
from attnspec.conformance.probe.experiment import UNKNOWN, Finding
from attnspec.conformance.probe.harness import Harness
from attnspec.conformance.probe.packed import PackedHarness, run_packed
from attnspec.conformance.probe.probe import experiments, harness_of, run_experiment
from attnspec.conformance.probe.target import target_of
from attnspec.conformance.runner.claims import DTYPES, Claims
from attnspec.conformance.runner.declare import TargetError
from attnspec.conformance.runner.first_call import announcing, call_announced_last
from attnspec.conformance.runner.plan import reply_of_target, request_of_target


def probe_in_subprocess(
    target: str,
    questions: Iterable[str],
    *,
    dtypes: str | None = None,
    device: str = "cpu",
    timeout: float = 60.0,
    memory: int | None = None,
    operator: str | None = None,
) -> Iterator[Finding]:
    """Run experiments on a target in a subprocess, which is replaced if it ends.

    Args:
        target: the target, as on the command line.
        questions: the questions of the experiments.
        dtypes: the storage types to try, as on the command line.
        device: the device of all tensors.
        timeout: seconds for one experiment.
        memory: memory limit of the subprocess in bytes; `None` is no limit.
        operator: `packed` or `paged`; `None` for a padded attention.

    Yields:
        One finding per question, in their order.
    """
    process: Process | None = None
    settings = {"target": target, "dtypes": dtypes, "device": device, "operator": operator}
    try:
        for question in questions:
            process = process or Process(_run_question, memory)
            try:
                yield Finding.from_json(process.call(settings | {"question": question}, timeout))
            except ProcessLost as lost:
                process = None
                ended = f"during this experiment {lost}"
                reason = f"no answer within {timeout:g} s" if lost.hung else ended
                yield _lost(question, f"{reason}{call_announced_last(lost.notes)}")
    finally:
        if process is not None:
            process.end()


def find_import_code(
    target: str, device: str, *, timeout: float, memory: int | None, operator: str | None = None
) -> str:
    """Import a target in a subprocess and return the code that defines its name.

    The name is `attention`, or that of an operator.

    Raises:
        TargetError: if the target cannot be found or imported, is no attention, hangs or crashes.
    """
    process = Process(_import_target, memory)
    try:
        request = {"target": target, "device": device, "operator": operator}
        reply = request_of_target(process, target, request, timeout)
    finally:
        process.end()
    if "import_code" not in reply:
        raise TargetError(reply.get("refused") or reply["broken"])
    return str(reply["import_code"])


def _import_target(request: dict[str, Any], send_note: SendNote) -> str:
    """Import a target and reply with its import code; runs in the subprocess."""
    target, device, operator = request["target"], request["device"], request["operator"]
    return reply_of_target(
        target, lambda: {"import_code": target_of(target, device, operator).import_code}
    )


def _run_question(request: dict[str, Any], send_note: SendNote) -> str:
    """Run one experiment and return its finding as JSON; runs in the subprocess."""
    question = request["question"]
    try:
        if request["operator"]:
            packed = _packed_harness(request["target"], request["dtypes"], request["operator"])
            with announcing(send_note):
                return run_packed(question, packed).to_json()
        (experiment,) = (known for known in experiments() if known.question == question)
        harness = _harness(request["target"], request["dtypes"], request["device"])
        with announcing(send_note):
            return run_experiment(experiment, harness).to_json()
    except Exception as error:
        return _lost(question, f"{type(error).__name__}: {error}").to_json()


@functools.cache
def _harness(target: str, dtypes: str | None, device: str) -> Harness:
    """Return the harness of a target; cached, so a target is imported once per process."""
    attention = target_of(target, device).attention
    return harness_of(attention, Claims.read(dtypes=dtypes).dtypes, device)


@functools.cache
def _packed_harness(target: str, dtypes: str | None, operator: str) -> PackedHarness:
    """Return the harness of a packed or paged attention; cached like that of a padded one."""
    tried = Claims.read(dtypes=dtypes).dtypes or tuple(DTYPES.values())
    function = target_of(target, "cpu", operator).attention
    return PackedHarness(operator=operator, function=function, dtypes=tried)


def _lost(question: str, reason: str) -> Finding:
    """Return the finding for an experiment that did not complete."""
    return Finding(question=question, answer=UNKNOWN, evidence=(reason,))

"""The probe in a process of its own: one that hangs or dies costs one experiment, and no more."""

import functools
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from attnspec.conformance.claims import Claims
from attnspec.conformance.isolation import Lost, Process, Tell
from attnspec.conformance.memory import limit_memory
from attnspec.conformance.probe import UNKNOWN, Finding, answer, experiments, rig_of
from attnspec.conformance.probe_rig import Rig
from attnspec.conformance.probe_target import target_of
from attnspec.conformance.targets import TargetError

ENDED = (BrokenProcessPool, EOFError, OSError)
"""What comes of a process that is no more."""


def probe_apart(
    target: str,
    questions: Iterable[str],
    *,
    dtypes: str | None = None,
    device: str = "cpu",
    timeout: float = 60.0,
    memory: int | None = None,
) -> Iterator[Finding]:
    """Answer questions about a target in another process, which is replaced where it ends.

    Args:
        target: as on the command line.
        questions: of experiments.
        dtypes: the storage types to try, as on the command line.
        device: where tensors are made.
        timeout: seconds for one experiment.
        memory: bytes that the process may hold; `None` for as many as there are.

    Yields:
        One finding per question, in their order.
    """
    # neither the threads nor the CUDA context of this process are in a child of a server
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    waiting = list(questions)
    while waiting:
        with _executor(context, memory) as pool:
            # our own imports are not on the target's time
            pool.submit(experiments).result()
            while waiting:
                question = waiting.pop(0)
                try:
                    found = pool.submit(_one, target, question, dtypes, device)
                    yield Finding.from_json(found.result(timeout))
                except TimeoutError:
                    yield _lost(question, f"no answer within {timeout:g} s")
                    break
                except ENDED:
                    yield _lost(question, "the process ended during this experiment")
                    break
                except Exception as error:
                    yield _lost(question, f"{type(error).__name__}: {error}")


def importing_apart(target: str, device: str, *, timeout: float, memory: int | None) -> str:
    """The code that makes the name `attention` known, found by importing it in another process.

    Raises:
        TargetError: where it cannot be found or imported, is no attention, hangs or dies.
    """
    process = Process(_found, memory)
    try:
        told = json.loads(process.ask({"target": target, "device": device}, timeout))
    except Lost as lost:
        raise TargetError(f"{target}: importing it failed: {lost}") from None
    finally:
        process.end()
    if "refused" in told:
        raise TargetError(told["refused"])
    return str(told["importing"])


def _found(question: dict[str, Any], tell: Tell) -> str:
    """Answer what a target is, inside the process that imports it."""
    target = question["target"]
    try:
        return json.dumps({"importing": target_of(target, question["device"]).importing})
    except (TargetError, ValueError) as error:
        return json.dumps({"refused": str(error)})
    except BaseException as error:
        told = f"{target}: importing it failed: {type(error).__name__}: {error}"
        return json.dumps({"refused": told})


@contextmanager
def _executor(
    context: multiprocessing.context.ForkServerContext, memory: int | None
) -> Iterator[ProcessPoolExecutor]:
    """A pool of one process, which is gone afterwards whatever it is doing."""
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(memory,))
    try:
        yield pool
    finally:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(memory: int | None) -> None:
    """Be quiet, use one thread, and hold no more than is allowed."""
    torch.set_num_threads(1)
    limit_memory(memory)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _one(target: str, question: str, dtypes: str | None, device: str) -> str:
    """Run one experiment in this process."""
    (chosen,) = (each for each in experiments() if each.question == question)
    return answer(chosen, _rig(target, dtypes, device)).to_json()


@functools.cache
def _rig(target: str, dtypes: str | None, device: str) -> Rig:
    """The rig of a target, made once in each process."""
    found = target_of(target, device).attention
    return rig_of(found, Claims.read(dtypes=dtypes).dtypes, device)


def _lost(question: str, why: str) -> Finding:
    return Finding(question=question, answer=UNKNOWN, evidence=(why,))

"""Restore process-wide state after untrusted code has run."""

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch


@contextmanager
def restored_state() -> Iterator[None]:
    """Restore the process-wide state on leaving the block.

    The state is the default dtype and device, the gradient mode, threads, deterministic
    algorithms, random states, the precision of products, flushing of denormals, the environment,
    the working folder, the standard streams and the filters of warnings.
    """
    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    is_grad, threads = torch.is_grad_enabled(), torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    only_warns = torch.is_deterministic_algorithms_warn_only_enabled()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    precision = torch.get_float32_matmul_precision()
    variables, folder = getattr(os, "environb", os.environ), Path.cwd()
    environment = dict(variables)  # as bytes if the system has them: decoding takes longer
    streams = sys.stdout, sys.stderr
    try:
        with warnings.catch_warnings():
            yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)
        torch.set_grad_enabled(is_grad)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        now = torch.are_deterministic_algorithms_enabled()
        now_warns = torch.is_deterministic_algorithms_warn_only_enabled()
        if (now, now_warns) != (is_deterministic, only_warns):  # the call imports a compiler
            torch.use_deterministic_algorithms(is_deterministic, warn_only=only_warns)
        if torch.get_float32_matmul_precision() != precision:
            torch.set_float32_matmul_precision(precision)
        torch.set_flush_denormal(False)
        torch.set_rng_state(states[0])
        random.setstate(states[1])
        np.random.set_state(states[2])  # noqa: NPY002
        if dict(variables) != environment:
            variables.clear()
            variables.update(environment)
        os.chdir(folder)
        sys.stdout, sys.stderr = streams

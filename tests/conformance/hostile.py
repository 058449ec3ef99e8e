"""Attention functions that do what no test should have to expect; and one that is right."""

import ctypes
import itertools
import os
import random
import threading
import time

import torch
from torch.nn.functional import scaled_dot_product_attention


def right(query, key, value, scale=None):
    return scaled_dot_product_attention(query, key, value, scale=scale)


def _is_the_moment(query):
    """Of one law alone, so that the others show that they still run."""
    return query.shape[-2] == 0


def raises(query, key, value, scale=None):
    raise RuntimeError("no kernel for this")


def leaves(query, key, value, scale=None):
    raise SystemExit("goodbye")


def returns_none(query, key, value, scale=None):
    return None


def returns_a_tuple(query, key, value, scale=None):
    return right(query, key, value, scale), None


def returns_another_shape(query, key, value, scale=None):
    return right(query, key, value, scale)[None]


def returns_nan(query, key, value, scale=None):
    return right(query, key, value, scale) * torch.nan


def returns_another_dtype(query, key, value, scale=None):
    return right(query, key, value, scale).double()


def writes_to_its_inputs(query, key, value, scale=None):
    out = right(query, key, value, scale)
    for each in (query, key, value):
        each.zero_()
    return out


def prints_megabytes(query, key, value, scale=None):
    for _ in range(3):
        print("x" * 2**20, flush=True)
        os.write(2, b"y" * 2**20)
    if _is_the_moment(query):
        print("the last words")
        os._exit(7)
    return right(query, key, value, scale)


def changes_the_generator(query, key, value, scale=None):
    torch.manual_seed(4)
    return right(query, key, value, scale)


def changes_the_default_dtype(query, key, value, scale=None):
    torch.set_default_dtype(torch.float16)
    return right(query, key, value, scale)


def changes_the_threads(query, key, value, scale=None):
    torch.set_num_threads(3)
    return right(query, key, value, scale)


def changes_the_grad_mode(query, key, value, scale=None):
    torch.set_grad_enabled(not torch.is_grad_enabled())
    return right(query, key, value, scale)


def changes_everything_else(query, key, value, scale=None):
    out = right(query, key, value, scale)
    os.environ.clear()
    os.chdir("/")
    torch.softmax = torch.matmul = torch.nn.functional.scaled_dot_product_attention = None
    return out


def sleeps(query, key, value, scale=None):
    while _is_the_moment(query):
        try:
            time.sleep(3600)
        except BaseException:
            continue
    return right(query, key, value, scale)


def loops_in_c(query, key, value, scale=None):
    if _is_the_moment(query):
        sum(itertools.repeat(0))
    return right(query, key, value, scale)


def allocates(query, key, value, scale=None):
    held = []
    while _is_the_moment(query):
        held.append(bytes(2**24))
    return right(query, key, value, scale)


def allocates_tensors(query, key, value, scale=None):
    held = []
    while _is_the_moment(query):
        held.append(torch.ones(2**22))
    return right(query, key, value, scale)


def exits(query, key, value, scale=None):
    if _is_the_moment(query):
        os._exit(0)
    return right(query, key, value, scale)


def crashes(query, key, value, scale=None):
    if _is_the_moment(query):
        ctypes.string_at(0)
    return right(query, key, value, scale)


def leaves_threads(query, key, value, scale=None):
    def meddle():
        while True:
            torch.softmax = None
            time.sleep(0.01)

    if threading.active_count() < 8:
        threading.Thread(target=meddle).start()
    return right(query, key, value, scale)


CALLS = itertools.count()
COIN = random.Random(0)


def changes_its_mind(query, key, value, scale=None):
    out = right(query, key, value, scale)
    return out + 1 if next(CALLS) % 2 else out


def tosses_a_coin(query, key, value, scale=None):
    out = right(query, key, value, scale)
    return out + 1 if COIN.random() < 0.5 else out


def ignores_the_window(query, key, value, is_causal=False, scale=None, window=None, **rest):
    return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)


FAILS_ON_IMPORT = "raise RuntimeError('needs a licence')\n"

FAILS_IN_WORKERS = (
    "import os\n"
    "if 'PYTEST_XDIST_WORKER' in os.environ:\n"
    "    raise RuntimeError('one process at a time')\n"
    "from hostile import right\n"
)

EXITS_IN_WORKERS = (
    "import os\n"
    "if 'PYTEST_XDIST_WORKER' in os.environ:\n"
    "    os._exit(9)\n"
    "from hostile import right\n"
)

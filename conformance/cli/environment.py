"""Environment variables of the processes that judge, which they inherit from the command."""

import os

VARIABLES = {
    # one thread for each worker
    "OMP_NUM_THREADS": "1",
    # more of them, in some calls, would spin while they wait, on the cores of other workers
    "OMP_WAIT_POLICY": "passive",
    # glibc would return the memory of each large tensor at once, and fetch it zeroed for the next
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    "MALLOC_ARENA_MAX": "1",
}
"""The variables that a command sets if the user has not; glibc alone reads the last three."""


def set_variables() -> None:
    """Set the variables of the processes that this one starts."""
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)

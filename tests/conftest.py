"""Settings of all tests."""

import hypothesis
import torch

# Two workers share the machine, and a worker that starts threads of its own slows the other.
torch.set_num_threads(1)

# The same examples on every run: the suite's own exploration is what looks for new ones.
hypothesis.settings.register_profile("tests", deadline=None, derandomize=True)
hypothesis.settings.load_profile("tests")

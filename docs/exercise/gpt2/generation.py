"""Step 14. Greedy generation (optional)."""

import torch


def generate(model, input_ids, max_new_tokens):
    """Return the new tokens, a list of ids.

    Args:
        model: gives the logits of input_ids.
        input_ids: the prompt, (1, length).
        max_new_tokens: how many to add.
    """
    # Hint: the logits at the last position say what follows. Append the likeliest token, again
    # and again.
    raise NotImplementedError

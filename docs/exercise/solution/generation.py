"""Step 14. Greedy generation (optional)."""

import torch


def generate(model, input_ids, max_new_tokens):
    """Return the new tokens, a list of ids.

    Args:
        model: gives the logits of input_ids.
        input_ids: the prompt, (1, length).
        max_new_tokens: how many to add.
    """
    tokens = input_ids[0].tolist()
    for _ in range(max_new_tokens):
        logits = model(torch.tensor([tokens]))
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[input_ids.shape[1] :]

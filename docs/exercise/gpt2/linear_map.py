"""Step 4. The linear map, in the layout of GPT-2's checkpoints."""


def linear(x, weight, bias):
    """Map the last axis.

    Args:
        x: (..., inputs).
        weight: (inputs, outputs).
        bias: (outputs,).
    """
    # Hint: one line. Which of the two orders does torch.nn.functional.linear take?
    raise NotImplementedError

"""The training loss of a language model."""

import torch
from jaxtyping import Float, Int

IGNORED = -100
"""The label of a token that nobody is asked to predict."""


def next_token_loss(
    logits: Float[torch.Tensor, "batch length vocab"],
    labels: Int[torch.Tensor, "batch length"],
) -> Float[torch.Tensor, ""]:
    r"""Average how surprised each position is by the token after it.

    .. math:: L = -\frac{1}{|T|} \sum_{(b, t) \in T} \log
        \frac{e^{z_{b,t,y_{b,t+1}}}}{\sum_w e^{z_{b,t,w}}}

    Args:
        logits: one per token of the vocabulary, at each position.
        labels: usually the input ids themselves; -100 where no prediction is asked for. Label 0 of
            each row is never predicted.

    Returns:
        The mean over all predicted tokens, in nats, not negative.

    Raises:
        ValueError: where there is no token to predict, or a label is no token.

    Clauses:
        GPT-13

    Source:
        Radford et al. 2018, equation 1
    """
    targets = labels[:, 1:]
    asked = targets != IGNORED
    if not asked.any():
        raise ValueError("labels: there is no token to predict")
    vocab = logits.shape[-1]
    wrong = asked & ((targets < 0) | (targets >= vocab))
    if wrong.any():
        raise ValueError(
            f"labels must lie in [0, {vocab}) or be {IGNORED}, got {targets[wrong][0]}"
        )
    predicted = logits[:, :-1][asked]
    peak = predicted.detach().amax(dim=-1, keepdim=True)
    normalizer = peak[:, 0] + torch.log(torch.exp(predicted - peak).sum(dim=-1))
    chosen = predicted.gather(-1, targets[asked][:, None])[:, 0]
    return (normalizer - chosen).mean()

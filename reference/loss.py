"""The training loss of a language model."""

import torch
from jaxtyping import Float, Int

IGNORED = -100
"""The label of a token that is not to be predicted."""


def next_token_loss(
    logits: Float[torch.Tensor, "batch length vocab"],
    labels: Int[torch.Tensor, "batch length"],
) -> Float[torch.Tensor, ""]:
    r"""Average the cross-entropy of each position's logits with the token after it.

    .. math:: L = -\frac{1}{|T|} \sum_{(b, t) \in T} \log
        \frac{e^{z_{b,t,y_{b,t+1}}}}{\sum_w e^{z_{b,t,w}}}

    Args:
        logits: one per token of the vocabulary, at each position.
        labels: token ids, usually the input ids themselves; -100 for a token that is not to be
            predicted. Label 0 of each row is never predicted.

    Returns:
        The mean over all predicted tokens, in nats, not negative.

    Raises:
        ValueError: if there is no token to predict, or a label is no token.

    Clauses:
        GPT-13

    Source:
        Radford et al. 2018, equation 1
    """
    targets = labels[:, 1:]
    is_predicted = targets != IGNORED
    if not is_predicted.any():
        raise ValueError("labels: there is no token to predict")
    vocab = logits.shape[-1]
    is_invalid = is_predicted & ((targets < 0) | (targets >= vocab))
    if is_invalid.any():
        raise ValueError(
            f"labels must lie in [0, {vocab}) or be {IGNORED}, got {targets[is_invalid][0]}"
        )
    predicted = logits[:, :-1][is_predicted]
    peak = predicted.detach().amax(dim=-1, keepdim=True)
    normalizer = peak[:, 0] + torch.log(torch.exp(predicted - peak).sum(dim=-1))
    chosen = predicted.gather(-1, targets[is_predicted][:, None])[:, 0]
    return (normalizer - chosen).mean()

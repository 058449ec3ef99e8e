"""Generation: one token at a time, each drawn from the model's probabilities."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int


def next_token_probabilities(
    logits: Float[torch.Tensor, "*batch vocab"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
) -> Float[torch.Tensor, "*batch vocab"]:
    r"""Turn logits into the probabilities from which the next token is drawn.

    .. math:: p_w \propto e^{z_w / T}, \quad w \in K

    The temperature comes first, then top-k, then top-p on what top-k left, then min-p.

    Args:
        logits: one per token; minus infinity rules a token out.
        temperature: positive; below 1 sharpens, above 1 flattens: :math:`T`.
        top_k: keep the tokens that are at least as likely as the k-th likeliest, so more than k
            where some tie with it; at least 1. None keeps all.
        top_p: keep the fewest tokens that together have at least this probability, of equally
            likely ones those with the lower ids; in (0, 1]. None and 1 keep all.
        min_p: keep the tokens with at least this share of the largest probability; in [0, 1].
            None and 0 keep all, 1 keeps those that are as likely as the likeliest.

    Returns:
        Float64, not negative, each row adding up to 1; zero for every token not kept.

    Raises:
        ValueError: for a number out of range, or for logits with NaN, plus infinity, or no
            finite one.

    Clauses:
        GEN-1, GEN-2, GEN-3, GEN-5, GEN-6, GEN-13, GEN-14

    Source:
        top-k: Fan et al. 2018, section 5.4; top-p: Holtzman et al. 2020, section 3.1; min-p:
        Nguyen et al. 2025, section 3
    """
    _check_sampling(temperature, top_k, top_p, min_p)
    peak = logits.to(torch.float64).amax(dim=-1, keepdim=True)
    if not peak.isfinite().all():
        raise ValueError("logits must not be NaN, plus infinity, or all minus infinity")

    # TEMPERATURE
    masses = torch.exp((logits.to(torch.float64) - peak) / temperature)

    # TOP K
    if top_k is not None and top_k < logits.shape[-1]:
        least = masses.topk(top_k, dim=-1).values[..., -1:]
        masses = torch.where(masses >= least, masses, 0.0)

    # TOP P
    if top_p is not None and top_p < 1:
        descending, order = masses.sort(dim=-1, descending=True, stable=True)
        before = descending.cumsum(dim=-1) - descending
        keeps = before < top_p * descending.sum(dim=-1, keepdim=True)
        masses = torch.where(torch.zeros_like(keeps).scatter(-1, order, keeps), masses, 0.0)

    # MIN P
    if min_p is not None:
        # the likeliest token, which every filter keeps, has mass 1
        masses = torch.where(masses >= min_p, masses, 0.0)

    return masses / masses.sum(dim=-1, keepdim=True)


def sample(
    next_logits: Callable[[Sequence[int]], Float[torch.Tensor, " vocab"]],
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    greedy: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int | None = None,
    stop_tokens: Collection[int] = (),
) -> Iterator[int]:
    """Choose tokens one after another, each from the logits given all before it.

    Args:
        next_logits: maps the prompt and all new tokens so far to the logits of the next token.
        prompt: token ids, at least one.
        max_new_tokens: the largest number of new tokens, not negative.
        greedy: take the likeliest token, of equally likely ones the lowest id; nothing is drawn.
        temperature: positive, as in `next_token_probabilities`.
        top_k: at least 1 or None, as in `next_token_probabilities`.
        top_p: in (0, 1] or None, as in `next_token_probabilities`.
        min_p: in [0, 1] or None, as in `next_token_probabilities`.
        seed: seeds the draws; the same seed gives the same tokens. None takes a fresh one.
        stop_tokens: token ids that end the text; they are not returned.

    Returns:
        The new tokens, one by one.

    Raises:
        ValueError: at once, for a number out of range or an empty prompt.

    Clauses:
        GEN-4, GEN-7, GEN-8, GEN-9, GEN-10
    """
    _check_sampling(temperature, top_k, top_p, min_p)
    if greedy and (temperature, top_k, top_p, min_p) != (1.0, None, None, None):
        raise ValueError("greedy draws nothing: temperature, top_k, top_p, min_p cannot be given")
    check_length(prompt, max_new_tokens)
    draws = torch.Generator()
    if seed is None:
        draws.seed()
    else:
        draws.manual_seed(seed)

    def choose(logits: Float[torch.Tensor, " vocab"]) -> int:
        if greedy:
            return int((logits == logits.max()).nonzero()[0])
        probabilities = next_token_probabilities(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
        )
        return int(torch.multinomial(probabilities.cpu(), 1, generator=draws))

    def new_tokens() -> Iterator[int]:
        tokens = [*prompt]
        for _ in range(max_new_tokens):
            token = choose(next_logits(tokens))
            if token in stop_tokens:
                return
            yield token
            tokens.append(token)

    return new_tokens()


def generate(
    model: Any,
    input_ids: Sequence[int] | torch.Tensor,
    *,
    max_new_tokens: int,
    use_cache: bool = True,
    **sampling: Any,
) -> Iterator[int]:
    """Continue a text with a model, token by token.

    Args:
        model: a GPT-2 with a cache, or without one if `use_cache` is false.
        input_ids: the prompt, one sequence of at least one token; a tensor on the model's device.
        max_new_tokens: the largest number of new tokens, not negative. With the prompt they must
            fit into the model's positions: no token is cut off silently.
        use_cache: compute each token's keys and values only once; the tokens are the same.
        **sampling: as in `sample`.

    Returns:
        The new tokens, one by one.

    Raises:
        ValueError: at once, for a number out of range, an empty prompt, or more tokens than the
            model has positions.

    Clauses:
        GEN-4, GEN-11, GEN-12, GPT-16
    """
    prompt = checked_prompt(model, input_ids, max_new_tokens)
    cache, past = (model.empty_cache(), 0) if use_cache else (None, 0)

    @torch.no_grad()
    def next_logits(tokens: Sequence[int]) -> Float[torch.Tensor, " vocab"]:
        nonlocal cache, past
        new_ids = prompt.new_tensor(tokens[past:])[None]
        if use_cache:
            logits, cache = model(new_ids, cache=cache)
            past = len(tokens)
        else:
            logits = model(new_ids)
        last: torch.Tensor = logits[0, -1]
        return last

    return sample(next_logits, prompt.tolist(), max_new_tokens=max_new_tokens, **sampling)


def checked_prompt(
    model: Any, input_ids: Sequence[int] | torch.Tensor, max_new_tokens: int
) -> Int[torch.Tensor, " length"]:
    """Return a prompt as a tensor of ids, on the device on which it is given.

    Args:
        model: a GPT-2.
        input_ids: one sequence of tokens, (length) or (1, length).
        max_new_tokens: the largest number of new tokens.

    Raises:
        ValueError: for several sequences, or more tokens than the model has positions.

    Clauses:
        GPT-16
    """
    ids = torch.as_tensor(input_ids, dtype=torch.long)
    if ids.ndim != 1 and ids.shape[:-1] != (1,):
        raise ValueError(f"input_ids must be one sequence of tokens, got shape {tuple(ids.shape)}")
    prompt = ids.flatten()
    positions = model.config.n_positions
    if len(prompt) + max_new_tokens > positions:
        raise ValueError(
            f"max_new_tokens: {len(prompt)} tokens of prompt and {max_new_tokens} new ones do not "
            f"fit into the model's {positions} positions; at most "
            f"{max(0, positions - len(prompt))} new ones do"
        )
    return prompt


def check_length(prompt: Sequence[int], max_new_tokens: int) -> None:
    """Refuse an empty prompt, or a negative number of new tokens.

    Raises:
        ValueError: naming it.
    """
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must not be negative, got {max_new_tokens}")
    if len(prompt) == 0:
        raise ValueError("the prompt must hold at least one token")


def _check_sampling(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> None:
    if not (math.isfinite(temperature) and temperature > 0):
        raise ValueError(f"temperature must be finite and positive, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be at least 1 or None, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1] or be None, got {top_p}")
    if min_p is not None and not 0 <= min_p <= 1:
        raise ValueError(f"min_p must lie in [0, 1] or be None, got {min_p}")

"""Beam search: the most probable continuation, sought with several hypotheses at a time."""

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float

from attnspec.reference.generation import check_length, checked_prompt
from attnspec.spec import EarlyStopping, Hypothesis


def log_probabilities(logits: Float[torch.Tensor, " vocab"]) -> Float[torch.Tensor, " vocab"]:
    r"""Turn logits into the natural logarithms of the next token's probabilities.

    .. math:: \ln p_w = z_w - \ln \sum_v e^{z_v}

    Args:
        logits: one per token; minus infinity rules a token out.

    Returns:
        Float64, at most 0; minus infinity for a token that is ruled out.

    Raises:
        ValueError: for logits with NaN, plus infinity, or no finite one.

    Clauses:
        GEN-16
    """
    peak = logits.to(torch.float64).max()
    if not peak.isfinite():
        raise ValueError("logits must not be NaN, plus infinity, or all minus infinity")
    centred = logits.to(torch.float64) - peak
    return centred - torch.exp(centred).sum().log()


def beam_search(
    next_logits: Callable[[Sequence[int]], Float[torch.Tensor, " vocab"]],
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    beams: int,
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = EarlyStopping.HEURISTIC,
    stop_tokens: Collection[int] = (),
) -> list[Hypothesis]:
    r"""Search for the continuation with the best score.

    .. math:: \operatorname{score}(t_1, \dots, t_n)
        = \frac{1}{n^\alpha} \sum_{i \le n} \ln p(t_i \mid x, t_1, \dots, t_{i-1})

    At each step the most probable continuations of all open hypotheses by one token stay open.

    Args:
        next_logits: maps the prompt and the new tokens of a hypothesis to the next token's logits.
        prompt: token ids, at least one.
        max_new_tokens: the largest number of new tokens, not negative.
        beams: the number of hypotheses that stay open at each step, at least 1.
        length_penalty: 0 compares log-probabilities; the larger, the more it favours long texts:
            :math:`\alpha`.
        early_stopping: the rule by which the search ends before `max_new_tokens`.
        stop_tokens: token ids that end a hypothesis; they are the last of its tokens, and counted.

    Returns:
        The best hypotheses, as many as there are beams, or fewer where there are not so many; the
        best one first, of equal ones that which was finished first.

    Raises:
        ValueError: for a number out of range, an empty prompt, or logits with NaN, plus infinity,
            or no finite one.

    Clauses:
        GEN-15, GEN-16, GEN-17, GEN-18, GEN-19, GEN-20

    Source:
        Graves 2012, section 2.5; the length penalty and the rules of early stopping: Hugging
        Face's `generate`
    """
    check_length(prompt, max_new_tokens)
    _check_beams(beams, length_penalty, max_new_tokens)
    stops = frozenset(stop_tokens)
    open_hypotheses: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    finished: list[Hypothesis] = []
    for length in range(1, max_new_tokens + 1):
        # CONTINUE every open hypothesis by every token
        sums = torch.stack(
            [
                total + log_probabilities(next_logits([*prompt, *tokens])).cpu()
                for tokens, total in open_hypotheses
            ]
        )
        vocab = sums.shape[1]
        continuations = [
            ((*open_hypotheses[place // vocab][0], place % vocab), total)
            for place, total in _largest(sums.flatten(), beams * (1 + len(stops)))
        ]

        # FINISH those of the best that end here
        for tokens, total in continuations[:beams]:
            if tokens[-1] in stops or length == max_new_tokens:
                finished.append(Hypothesis(tokens, total / length**length_penalty))
        finished = sorted(finished, key=lambda each: -each.score)[:beams]

        # KEEP the best of the others open
        open_hypotheses = [
            (tokens, total) for tokens, total in continuations if tokens[-1] not in stops
        ][:beams]
        if not open_hypotheses:
            break

        # END if no better hypothesis is expected
        if len(finished) == beams:
            longest = length
            if early_stopping is EarlyStopping.NEVER and length_penalty > 0:
                longest = max_new_tokens
            best_in_reach = open_hypotheses[0][1] / longest**length_penalty
            if early_stopping is EarlyStopping.FULL or best_in_reach <= finished[-1].score:
                break
    return finished


def generate_beams(
    model: Any,
    input_ids: Sequence[int] | torch.Tensor,
    *,
    max_new_tokens: int,
    use_cache: bool = True,
    **search: Any,
) -> list[Hypothesis]:
    """Search for the best continuation of a text with a model.

    Args:
        model: a GPT-2 with a cache, or without one if `use_cache` is false.
        input_ids: the prompt, one sequence of at least one token; a tensor on the model's device.
        max_new_tokens: the largest number of new tokens, not negative. With the prompt they must
            fit into the model's positions.
        use_cache: compute each token's keys and values only once; the hypotheses are the same.
        **search: as in `beam_search`.

    Returns:
        The best hypotheses, the best one first.

    Raises:
        ValueError: for a number out of range, an empty prompt, or more tokens than the model has
            positions.

    Clauses:
        GPT-16, GPT-23
    """
    prompt = checked_prompt(model, input_ids, max_new_tokens)
    caches: dict[tuple[int, ...], Any] = {}

    @torch.no_grad()
    def next_logits(tokens: Sequence[int]) -> Float[torch.Tensor, " vocab"]:
        if use_cache:
            # hypotheses that continue the same one share its cache
            cache = caches.get(tuple(tokens[:-1]), model.empty_cache())
            new_ids = prompt.new_tensor(tokens[cache.length :])[None]
            logits, caches[tuple(tokens)] = model(new_ids, cache=cache)
            for shorter in [each for each in caches if len(each) < len(tokens) - 1]:
                del caches[shorter]
        else:
            logits = model(prompt.new_tensor(tokens)[None])
        last: torch.Tensor = logits[0, -1]
        return last

    return beam_search(next_logits, prompt.tolist(), max_new_tokens=max_new_tokens, **search)


def _largest(sums: Float[torch.Tensor, " n"], count: int) -> list[tuple[int, float]]:
    """Return the places of the largest finite sums, with these, in descending order.

    Args:
        sums: log-probabilities.
        count: how many at most.
    """
    order = sums.sort(descending=True, stable=True).indices[:count].tolist()
    return [(place, float(sums[place])) for place in order if sums[place] > -math.inf]


def _check_beams(beams: int, length_penalty: float, max_new_tokens: int) -> None:
    if beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams}")
    largest_power = math.log(max(1, max_new_tokens)) * abs(length_penalty)
    if not (math.isfinite(length_penalty) and largest_power < math.log(2) * 1023):
        raise ValueError(
            f"length_penalty must be finite, and so must max_new_tokens to its power, got "
            f"{length_penalty}"
        )

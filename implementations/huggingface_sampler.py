"""Hugging Face's logits processors and its `generate`, around any source of logits."""

import functools
import importlib.util
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float

from attnspec.spec import (
    Beams,
    EarlyStopping,
    Hypothesis,
    NextLogits,
    SamplerFeature,
    SamplerImplementation,
    Sampling,
)


def check(sampling: Sampling) -> None:
    """Refuse invalid settings that the library accepts.

    Raises:
        ValueError: if `top_p` is zero or NaN, which the library reads as "one token" and "no
            filter", or if `top_k` is zero, which is "no filter" to its `generate`.
    """
    if sampling.top_p is not None and not 0 < sampling.top_p <= 1:
        raise ValueError(f"top_p must lie in (0, 1], got {sampling.top_p}")
    if sampling.top_k is not None and sampling.top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {sampling.top_k}")


def probabilities(
    logits: Float[torch.Tensor, " vocab"], sampling: Sampling
) -> Float[torch.Tensor, " vocab"]:
    """Apply the library's processors in the order of `generate`, then softmax."""
    from transformers.generation import logits_process

    check(sampling)
    processors = logits_process.LogitsProcessorList(
        [logits_process.TemperatureLogitsWarper(float(sampling.temperature))]
    )
    if sampling.top_k is not None:
        processors.append(logits_process.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        processors.append(logits_process.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        processors.append(logits_process.MinPLogitsWarper(sampling.min_p))
    no_ids: Any = torch.empty(1, 0, dtype=torch.long)
    scores: torch.Tensor = processors(no_ids, logits[None])
    return scores.softmax(-1)[0]


def generate(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    stop_tokens: Collection[int] = frozenset(),
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[int]:
    """Call the library's `generate`, and restore the global random state that it uses."""
    from transformers import GenerationConfig

    options: dict[str, Any] = {"do_sample": False}
    if sampling is not None:
        check(sampling)
        # 0 and 1.0 turn the filters off
        options = {
            "do_sample": True,
            "temperature": float(sampling.temperature),
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
            "min_p": sampling.min_p,
        }
    configuration = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_tokens) or None,
        pad_token_id=0,
        use_cache=False,
        **options,
    )
    ids = torch.tensor([list(prompt)])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        out = _scripted_model()(next_logits).generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=configuration
        )
    new: list[int] = out[0, len(prompt) :].tolist()
    # the library also returns the stop token
    return new[:-1] if new and new[-1] in stop_tokens else new


def beam_search(
    next_logits: NextLogits,
    prompt: Sequence[int],
    *,
    max_new_tokens: int,
    beams: Beams,
    stop_tokens: Collection[int] = frozenset(),
) -> list[Hypothesis]:
    """Call the library's `generate` with several beams, or with one, which it takes for greedy.

    Raises:
        ValueError: for settings out of range, some of which the library accepts.
    """
    from transformers import GenerationConfig

    if beams.beams < 1:
        raise ValueError(f"beams must be at least 1, got {beams.beams}")
    if not math.isfinite(beams.length_penalty):
        raise ValueError(f"length_penalty must be finite, got {beams.length_penalty}")
    options: dict[str, Any] = {}
    if beams.beams > 1:
        options = {
            "num_beams": beams.beams,
            "num_return_sequences": beams.beams,
            "length_penalty": float(beams.length_penalty),
            "early_stopping": _EARLY_STOPPING[beams.early_stopping],
        }
    configuration = GenerationConfig(
        max_new_tokens=max_new_tokens,
        eos_token_id=sorted(stop_tokens) or None,
        pad_token_id=0,
        use_cache=False,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    ids = torch.tensor([list(prompt)])
    model = _scripted_model()(next_logits)
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), generation_config=configuration
        )
    rows = [_ended(row, stop_tokens) for row in out.sequences[:, len(prompt) :].tolist()]
    if beams.beams > 1:
        scores = out.sequences_scores.tolist()
        return [Hypothesis(row, score) for row, score in zip(rows, scores, strict=True)]
    # the library gives the log-probabilities of a greedy text, and no score
    model.config.vocab_size = out.scores[0].shape[-1]
    steps = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)[0]
    return [Hypothesis(rows[0], float(steps.sum()) / len(rows[0]) ** beams.length_penalty)]


_EARLY_STOPPING: dict[EarlyStopping, bool | str] = {
    EarlyStopping.NEVER: "never",
    EarlyStopping.HEURISTIC: False,
    EarlyStopping.FULL: True,
}


def _ended(row: list[int], stop_tokens: Collection[int]) -> tuple[int, ...]:
    """Return the tokens up to the first stop token: shorter hypotheses are padded."""
    end = next((place for place, token in enumerate(row) if token in stop_tokens), len(row) - 1)
    return tuple(row[: end + 1])


def supports_beams(beams: Beams) -> str | None:
    """Return the reason why settings of a beam search are refused, or None."""
    goes_on = beams.early_stopping is EarlyStopping.NEVER and beams.length_penalty > 0
    if beams.beams == 1 and goes_on:
        return "one beam is greedy generation, which ends with the first stop token"
    return None


@functools.cache
def _scripted_model() -> Any:
    """Return the class of a model whose logits come from a function of the ids so far."""
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class Config(PretrainedConfig):
        model_type = "attnspec_scripted"

    class Scripted(PreTrainedModel, GenerationMixin):
        config_class = Config
        main_input_name = "input_ids"

        def __init__(self, next_logits: NextLogits) -> None:
            super().__init__(Config())
            self.next_logits = next_logits
            # `generate` reads the device from the parameters.
            self.anchor = torch.nn.Parameter(torch.zeros(()), requires_grad=False)

        def forward(self, input_ids: torch.Tensor, **unused: Any) -> Any:
            rows = [self.next_logits(row) for row in input_ids.tolist()]
            return CausalLMOutput(logits=torch.stack(rows)[:, None])

        def prepare_inputs_for_generation(
            self,
            input_ids: torch.Tensor,
            next_sequence_length: int | None = None,
            past_key_values: Any = None,
            attention_mask: torch.Tensor | None = None,
            inputs_embeds: torch.Tensor | None = None,
            is_first_iteration: bool | None = False,
            **unused: Any,
        ) -> dict[str, torch.Tensor]:
            # all ids each time: there is no cache, and no padding, so no need for the mask
            return {"input_ids": input_ids}

    return Scripted


def unavailable() -> str | None:
    """Return the reason why this cannot run here, or None."""
    is_installed = importlib.util.find_spec("transformers")
    return None if is_installed else "transformers is not installed: pip install attnspec[gpt2]"


SAMPLER = SamplerImplementation(
    name="huggingface_sampler",
    probabilities=probabilities,
    generate=generate,
    features=frozenset(SamplerFeature),
    beam_search=beam_search,
    beam_dtype=torch.float32,
    supports_beams=supports_beams,
    unavailable=unavailable,
)

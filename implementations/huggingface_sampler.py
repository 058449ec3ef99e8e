"""Hugging Face's logits processors and its `generate`, around any source of logits."""

import functools
import importlib.util
from collections.abc import Collection, Sequence
from typing import Any

import torch
from jaxtyping import Float

from attnspec.spec import NextLogits, SamplerImplementation, Sampling


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
    unavailable=unavailable,
)

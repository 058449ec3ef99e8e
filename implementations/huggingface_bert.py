"""Hugging Face's BERT, with its own attention, behind this project's contract of a BERT."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from jaxtyping import Int

from attnspec.implementations.frameworks import missing
from attnspec.spec.encoder import BertConfig, BertImplementation

_POOLER = "bert.pooler.dense"


class HuggingFaceBert:
    """A `BertForMaskedLM` with a pooler, which computes with the tensors of a state dictionary."""

    def __init__(self, config: BertConfig, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Make the modules without allocating parameters."""
        import transformers
        from transformers.models.bert.modeling_bert import BertPooler

        options: dict[str, Any] = asdict(config) | {
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "attn_implementation": "eager",
            "pad_token_id": None,
        }
        made = transformers.BertConfig(**options)
        with torch.device("meta"):
            self.module = transformers.BertForMaskedLM(made).eval()
            self.pooler = BertPooler(made).eval()
        # position and type ids are no parameters, and have to be real
        embeddings = self.module.bert.embeddings
        positions = torch.arange(config.max_position_embeddings)[None]
        embeddings.position_ids = positions
        embeddings.token_type_ids = torch.zeros_like(positions)
        self.of_pooler = {
            name.removeprefix("bert.pooler."): each
            for name, each in state_dict.items()
            if name.startswith(_POOLER)
        }
        self.parameters = {
            name: each for name, each in state_dict.items() if not name.startswith(_POOLER)
        }
        self.parameters["cls.predictions.decoder.weight"] = state_dict[
            "bert.embeddings.word_embeddings.weight"
        ]
        self.parameters["cls.predictions.decoder.bias"] = state_dict["cls.predictions.bias"]

    def __call__(
        self,
        input_ids: Int[torch.Tensor, "batch length"],
        *,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
        output_pooled: bool = False,
    ) -> Any:
        """Return the logits, and hidden states or pooled vectors if they are requested."""
        output = torch.func.functional_call(
            self.module,
            self.parameters,
            (input_ids,),
            {
                "attention_mask": attention_mask,
                "token_type_ids": token_type_ids,
                "output_hidden_states": True,
            },
        )
        states = tuple(output.hidden_states)
        if output_hidden_states:
            return output.logits, states
        if output_pooled:
            return output.logits, torch.func.functional_call(
                self.pooler, self.of_pooler, (states[-1],)
            )
        return output.logits


IMPLEMENTATION = BertImplementation(
    name="huggingface_bert",
    function=HuggingFaceBert,
    features=BertImplementation.FEATURES,
    unavailable=lambda: missing("transformers"),
)

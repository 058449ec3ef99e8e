"""Steps 12 and 13. The whole model, and its KV cache (optional)."""

from language_head import head
from parameters import load_parameters
from stack import transformer


class GPT2:
    """A GPT-2: model(input_ids) gives the logits, and with a cache also the next cache."""

    def __init__(self, config, parameters):
        self.config, self.parameters = config, parameters

    def empty_cache(self):
        return [{} for _ in range(self.config.n_layer)]

    def __call__(self, input_ids, cache=None):
        # copies of the dictionaries, so that the caller can continue the old cache again
        new = None if cache is None else [dict(kept) for kept in cache]
        x = transformer(input_ids, self.parameters, self.config, new)
        logits = head(x, self.parameters, self.config)
        return logits if new is None else (logits, new)


def build(config, state_dict):
    """Return a model, or refuse what it does not follow.

    Args:
        config: sizes, and switches of which the model follows only the usual values.
        state_dict: the parameters by name.
    """
    if config.activation_function != "gelu_new" or not config.tie_word_embeddings:
        raise NotImplementedError("only gelu_new, and a tied head")
    if config.scale_attn_by_inverse_layer_idx or not config.scale_attn_weights:
        raise NotImplementedError("only the usual scale")
    return GPT2(config, load_parameters(config, state_dict))

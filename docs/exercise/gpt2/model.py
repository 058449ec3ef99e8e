"""Steps 12 and 13. The whole model, and its KV cache (optional)."""

from language_head import head
from parameters import load_parameters
from stack import transformer


class GPT2:
    """A GPT-2: model(input_ids) gives the logits."""

    def __init__(self, config, parameters):
        self.config, self.parameters = config, parameters

    def __call__(self, input_ids):
        # Hint: transformer, then head. For step 13 take a keyword cache=None, return the logits and
        # the new cache if it is given, and add a method empty_cache.
        raise NotImplementedError


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
    # Hint: load_parameters, then GPT2.
    raise NotImplementedError

"""Step 11. The head: one logit for each token that may follow."""


def head(x, parameters, config):
    """Return the logits, (batch, length, vocab_size).

    Args:
        x: the output of transformer, (batch, length, n_embd).
        parameters: all of them by name.
        config: tie_word_embeddings, which is true.
    """
    return x @ parameters["transformer.wte.weight"].T

"""Step 2. Embeddings: from token ids to rows of the residual stream."""

import torch
from torch.nn import functional as F


def embed(input_ids, token_table, position_table):
    """Return a row for each token: its row of the token table plus the row of its position.

    Args:
        input_ids: (batch, length).
        token_table: (vocab_size, n_embd).
        position_table: (n_positions, n_embd).
    """
    positions = torch.arange(input_ids.shape[1])
    return F.embedding(input_ids, token_table) + F.embedding(positions, position_table)

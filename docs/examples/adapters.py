"""Adapters from the signatures of kernels to the signature of the specification."""

import torch


def from_length_before_heads(kernel):
    """Take tensors (batch, length, heads, d), as FlashAttention and JAX do."""

    def attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
        moved = (tensor.transpose(1, 2) for tensor in (query, key, value))
        return kernel(*moved, causal=is_causal, softmax_scale=scale).transpose(1, 2)

    return attention


def from_pair(kernel):
    """Return the log-sum-exp beside the output only if `return_lse` is set."""

    def attention(query, key, value, is_causal=False, scale=None, *, return_lse=False):
        out, lse = kernel(query, key, value, causal=is_causal, scale=scale)
        return (out, lse) if return_lse else out

    return attention


def from_window_size(kernel):
    """Spell the causal flag and the window as FlashAttention does: -1 has no bound."""

    def attention(query, key, value, is_causal=False, scale=None, *, window=None):
        left, right = (-1 if side is None else side for side in window or (None, None))
        return kernel(
            query, key, value, causal=is_causal, window_size=(left, right), softmax_scale=scale
        )

    return attention


def from_hugging_face(function):
    """Call an attention function of transformers, which belongs to a module and its groups."""

    def attention(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
        module = torch.nn.Module()
        module.num_key_value_groups = query.shape[1] // max(1, key.shape[1])
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        attn_mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.dim())]
        out, _ = function(module, query, key, value, attn_mask, scaling=scale, is_causal=is_causal)
        return out.transpose(1, 2)

    return attention


def from_jax(function):
    """Hand tensors over and back by DLPack, without a copy."""

    def attention(query, key, value, is_causal=False, scale=None, enable_gqa=False):
        import jax

        moved = (x.detach().transpose(1, 2).contiguous() for x in (query, key, value))
        arrays = (jax.dlpack.from_dlpack(tensor) for tensor in moved)
        out = function(*arrays, is_causal=is_causal, scale=scale)
        return torch.from_dlpack(out).transpose(1, 2)

    return attention

"""The parameters of GPT-2: their names, their shapes, and checks of both."""

from collections.abc import Mapping

import torch

from attnspec.spec import GPT2Config

TOKENS = "transformer.wte.weight"
POSITIONS = "transformer.wpe.weight"
HEAD = "lm_head.weight"
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


class WeightsError(ValueError):
    """A checkpoint cannot be used. The message names the tensor or the file, and says why."""


def parameter_shapes(config: GPT2Config) -> dict[str, tuple[int, ...]]:
    """List every parameter with its shape, in the order data flows.

    Args:
        config: the sizes.

    Returns:
        Shapes by name, input-major for linear maps; ``lm_head.weight`` only if it is untied.

    Source:
        Hugging Face transformers, `GPT2LMHeadModel`
    """
    d, inner = config.n_embd, config.d_inner
    block_shapes: dict[str, tuple[int, ...]] = {
        "ln_1.weight": (d,),
        "ln_1.bias": (d,),
        "attn.c_attn.weight": (d, 3 * d),
        "attn.c_attn.bias": (3 * d,),
        "attn.c_proj.weight": (d, d),
        "attn.c_proj.bias": (d,),
        "ln_2.weight": (d,),
        "ln_2.bias": (d,),
        "mlp.c_fc.weight": (d, inner),
        "mlp.c_fc.bias": (inner,),
        "mlp.c_proj.weight": (inner, d),
        "mlp.c_proj.bias": (d,),
    }
    shapes: dict[str, tuple[int, ...]] = {
        TOKENS: (config.vocab_size, d),
        POSITIONS: (config.n_positions, d),
    }
    for layer in range(config.n_layer):
        shapes |= {f"transformer.h.{layer}.{name}": shape for name, shape in block_shapes.items()}
    shapes |= {"transformer.ln_f.weight": (d,), "transformer.ln_f.bias": (d,)}
    return shapes if config.tie_word_embeddings else shapes | {HEAD: (config.vocab_size, d)}


def check_parameters(
    config: GPT2Config,
    state_dict: Mapping[str, torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
) -> dict[str, torch.Tensor]:
    """Check that the parameters are complete, that there are no others, and each one's kind.

    Args:
        config: the sizes.
        state_dict: parameters by name. A tied model may also hold ``lm_head.weight``, if it is
            equal to the token table.
        dtype: the dtype to convert to; None requires that all share one.

    Returns:
        The parameters in the order of `parameter_shapes`; gradients flow through to the originals.

    Raises:
        WeightsError: if there are fewer tensors than layers, and for the first tensor that is
            missing, extra, misshapen or of a wrong dtype.
    """
    if config.n_layer > len(state_dict):
        # before the names of as many layers as a file claims to have fill the memory
        raise WeightsError(
            f"n_layer is {config.n_layer}, but there are only {len(state_dict)} tensors"
        )
    shapes = parameter_shapes(config)
    missing = [name for name in shapes if name not in state_dict]
    if missing:
        raise WeightsError(f"{missing[0]}: missing{_and_more(missing)}")
    extra = [name for name in state_dict if name not in shapes]
    if HEAD in extra:
        head = state_dict[HEAD]
        if head.shape != shapes[TOKENS] or not torch.equal(head, state_dict[TOKENS]):
            raise WeightsError(
                f"{HEAD}: differs from {TOKENS}, though tie_word_embeddings says they are one"
            )
        extra.remove(HEAD)
    if extra:
        raise WeightsError(
            f"{extra[0]}: no parameter of this GPT-2 has this name{_and_more(extra)}"
        )
    for name, shape in shapes.items():
        tensor = state_dict[name]
        if not isinstance(tensor, torch.Tensor):
            raise WeightsError(f"{name}: must be a tensor, got {type(tensor).__name__}")
        if tensor.shape != shape:
            raise WeightsError(f"{name}: must have shape {shape}, got {tuple(tensor.shape)}")
        if tensor.dtype not in FLOATS:
            raise WeightsError(
                f"{name}: must be float64, float32, float16 or bfloat16, got {tensor.dtype}"
            )
        if dtype is None and tensor.dtype != state_dict[TOKENS].dtype:
            raise WeightsError(
                f"{name}: is {tensor.dtype} where {TOKENS} is {state_dict[TOKENS].dtype}; "
                "pass dtype to convert all to one"
            )
    return {name: state_dict[name].to(dtype or state_dict[name].dtype) for name in shapes}


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""

"""Laws of GPT: the block, its linear maps, packed projection, residuals, order and scales."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.laws.law import law
from attnspec.conformance.models.bounds.activation import ACTIVATIONS
from attnspec.conformance.models.case import ModelCase, draw, draw_parameters, model_cases, normal
from attnspec.conformance.models.oracle import (
    Allowed,
    check_against_oracle,
    check_within,
    own_logits,
)
from attnspec.conformance.models.readout import PINNED, coarse_rows, make_readout, normalized
from attnspec.conformance.models.subject import build, logits_of
from attnspec.spec import ModelImplementation

_HEADS = tuple(case for case in PINNED if case.n_head > 1)


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


def _block_cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, activation_function="gelu_new", tied=True)


def _coarse_normal(case: ModelCase, purpose: str, *shape: int) -> torch.Tensor:
    """Draw normal numbers of a case in steps of 1/256."""
    return (normal(case.seed, purpose, *shape) * 256).round() / 256


@law("GPT-1", pinned=PINNED, explore=_cases, cost=3.0)
def law_linear_maps_are_stored_input_major(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-1: a linear map is xW + b with W stored (in, out), also where W is square."""
    rows = coarse_rows(case)
    width = rows.shape[1]
    # attention over equal values gives that value, whatever the attention weights
    value = _coarse_normal(case, "value", width)
    packed = torch.cat([torch.zeros(2 * width).double(), value])
    weight, bias = _coarse_normal(case, "weight", width, width), _coarse_normal(case, "bias", width)
    readout = make_readout(rows, case, activation_function="relu", n_inner=width)
    if subject.supports(readout.config) is not None:
        readout = make_readout(rows, case)  # as released models are: only attention's map is square
    inner = readout.config.d_inner
    activation = ACTIVATIONS[readout.config.activation_function].value
    up = _coarse_normal(case, "up", width, inner) if inner != width else weight
    up_bias = _coarse_normal(case, "up bias", inner) if inner != width else bias
    down = _coarse_normal(case, "down", inner, width) / 4 if inner != width else weight
    hidden = 1 + _coarse_normal(case, "hidden", inner).abs()
    attention = readout.but(
        attn__c_attn__bias=packed, attn__c_proj__weight=weight, attn__c_proj__bias=bias
    )
    input_map = readout.but(
        ln_2__weight=torch.zeros(width),
        ln_2__bias=value,
        mlp__c_fc__weight=up,
        mlp__c_fc__bias=up_bias,
        mlp__c_proj__weight=torch.eye(inner, width),
    )
    output_map = readout.but(
        mlp__c_fc__bias=hidden, mlp__c_proj__weight=down, mlp__c_proj__bias=bias
    )
    branches = {
        "attn.c_proj": (attention, value @ weight + bias),
        "mlp.c_fc": (input_map, activation(value @ up + up_bias)[:width]),
        "mlp.c_proj": (output_map, activation(hidden) @ down + bias),
    }
    for name, (changed, branch) in branches.items():
        check_within(
            changed.read(subject),
            normalized(changed.stream + branch, case.layer_norm_epsilon),
            changed.tolerance,
            what="final LayerNorm",
            message=f"{name} does not compute xW + b with W stored (in, out)",
        )


@law("GPT-2", pinned=_HEADS, explore=_block_cases)
def law_packed_projection_holds_queries_keys_values(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-2: the columns of c_attn are queries, then keys, then values; in each, head by head."""
    config = case.config
    weights = draw_parameters(config, seed=case.seed, spread=0.5, dtype=case.dtype)
    for name in ("weight", "bias"):
        weights[f"transformer.h.0.mlp.c_proj.{name}"].zero_()
    check_against_oracle(
        subject,
        config,
        weights,
        draw(case).input_ids,
        "without the MLP, c_attn is not read as queries, keys, values by heads",
    )


@law("GPT-3", pinned=PINNED, explore=_cases, cost=4.0)
def law_each_branch_adds_to_the_stream(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-3: a block gives what entered it, plus what attention adds, plus what the MLP adds."""
    rows = coarse_rows(case)
    readout = make_readout(rows, case)
    width = rows.shape[1]
    attention, mlp = _coarse_normal(case, "attention", width), _coarse_normal(case, "mlp", width)
    biases = {"attn__c_proj__bias": attention, "mlp__c_proj__bias": mlp}
    for names in ([], ["attn__c_proj__bias"], ["mlp__c_proj__bias"], list(biases)):
        changed = readout.but(**{name: biases[name] for name in names})
        added = sum((biases[name] for name in names), torch.zeros(width).double())
        check_within(
            changed.read(subject),
            normalized(changed.stream + added, case.layer_norm_epsilon),
            changed.tolerance,
            what="final LayerNorm",
            message=f"the stream is not the embeddings plus {len(names)} constant branches",
        )


@law("GPT-4", pinned=PINNED, explore=_cases)
def law_layer_norm_precedes_each_branch(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-4: LayerNorm comes before attention and MLP and never touches the stream itself."""
    rows = coarse_rows(case)
    width = rows.shape[1]
    readout = make_readout(rows, case)
    zero_gain, identity = torch.zeros(width).double(), torch.eye(width).double()
    up = torch.eye(width, readout.config.d_inner)
    attention_input, mlp_input = (
        _coarse_normal(case, "first", width),
        _coarse_normal(case, "second", width),
    )
    # with a gain of zero the input of a branch is its bias, whatever the stream holds
    readout = readout.but(
        ln_1__weight=zero_gain,
        ln_1__bias=attention_input,
        ln_2__weight=zero_gain,
        ln_2__bias=mlp_input,
        attn__c_attn__weight=torch.cat([0 * identity, 0 * identity, identity], 1),
        attn__c_proj__weight=identity,
        mlp__c_fc__weight=up,
        mlp__c_proj__weight=up.mT,
    )
    added = attention_input + ACTIVATIONS["gelu_new"].value(mlp_input)
    check_within(
        readout.read(subject),
        normalized(readout.stream + added, case.layer_norm_epsilon),
        readout.tolerance,
        what="final LayerNorm",
        message="the branches do not read ln_1 and ln_2, or these change the stream",
    )


@law("GPT-5", pinned=PINNED, explore=_block_cases)
def law_the_mlp_reads_the_stream_after_attention(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-5: y = h + MLP(LayerNorm(h)) with h = x + attention(LayerNorm(x))."""
    case = case.but(activation_function="gelu_new")
    weights = draw_parameters(case.config, seed=case.seed, spread=0.3, dtype=case.dtype)
    check_against_oracle(
        subject,
        case.config,
        weights,
        draw(case).input_ids,
        "a block of random parameters is not attention, then MLP, each on the stream so far",
    )


_SCALED = tuple(
    case.but(n_head=heads, d_head=4, length=4, n_positions=6) for heads, case in
    zip((1, 1, 2, 2), PINNED[:4], strict=True)
)  # fmt: skip


def _cases_with_exact_scale(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, d_head=4, scale_attn_weights=True, tied=True)


def _multiply_queries(weights: dict[str, torch.Tensor], layer: int, factor: float) -> None:
    """Multiply the queries of one layer, in place."""
    projection = f"transformer.h.{layer}.attn.c_attn"
    width = weights[f"{projection}.weight"].shape[0]
    weights[f"{projection}.weight"][:, :width] *= factor
    weights[f"{projection}.bias"][:width] *= factor


@law("GPT-6", pinned=_SCALED, explore=_cases_with_exact_scale, cost=2.0)
def law_scale_attn_weights_divides_scores_by_the_root_of_d_head(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-6: dividing queries by √d_head has the effect of scale_attn_weights: equal logits."""
    inputs = draw(case.but(initializer_range=0.4, scale_attn_weights=True))
    halved = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    _multiply_queries(halved, 0, 0.5)
    off = case.but(scale_attn_weights=False).config
    with_scale = logits_of(
        build(subject, inputs.config, inputs.state_dict), inputs.input_ids, halved
    )
    without = logits_of(build(subject, off, halved), inputs.input_ids, halved)
    tolerances = [
        Allowed(inputs.config, inputs.state_dict, inputs.input_ids).one_call,
        Allowed(off, halved, inputs.input_ids).one_call,
    ]
    check_within(
        with_scale,
        without.double(),
        tolerances[0] + tolerances[1],
        what="logits",
        message="scale_attn_weights is not a factor 1/sqrt(d_head) of the scores",
    )


_WIDE = tuple(
    case.but(n_head=1, d_head=16, length=4, n_positions=6, layer_norm_epsilon=1e-5)
    for case in PINNED[:4]
)


@law("GPT-6", pinned=_WIDE, cost=2.0)
def law_a_head_four_times_as_wide_halves_its_scores(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-6: one head of 16 channels, twelve of them zero, is one of four channels times 1/2."""
    inputs = draw(case.but(initializer_range=0.4))
    narrow = case.but(n_head=4, d_head=4).config
    weights = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    # the other three heads of the narrow model have values of zero
    unused = (torch.arange(3 * case.n_embd) % case.n_embd) >= narrow.d_head
    weights["transformer.h.0.attn.c_attn.weight"][:, unused] = 0.0
    weights["transformer.h.0.attn.c_attn.bias"][unused] = 0.0
    halved = {name: tensor.clone() for name, tensor in weights.items()}
    _multiply_queries(halved, 0, 0.5)
    ids = inputs.input_ids
    check_within(
        logits_of(build(subject, inputs.config, weights), ids, weights),
        own_logits(subject, narrow, halved, ids),
        Allowed(inputs.config, weights, ids).one_call + Allowed(narrow, halved, ids).one_call,
        what="logits",
        message="the scores of a head are not divided by the root of its width",
    )


_LAYERED = tuple(
    case.but(n_layer=2, n_head=heads, d_head=3, length=4, n_positions=6) for heads, case in
    zip((1, 1, 2, 2), PINNED[:4], strict=True)
)  # fmt: skip


def _layered_cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=2, scale_attn_by_inverse_layer_idx=True, tied=True)


@law("GPT-7", pinned=_LAYERED, explore=_layered_cases, cost=2.0)
def law_inverse_layer_index_divides_scores_by_the_layer(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-7: with scale_attn_by_inverse_layer_idx, queries of layer l times l + 1 undo it."""
    on = case.but(initializer_range=0.3, scale_attn_by_inverse_layer_idx=True)
    inputs = draw(on)
    plain = {name: tensor.clone() for name, tensor in inputs.state_dict.items()}
    # without the MLPs the bounds are narrow enough for float32
    for name in ("weight", "bias"):
        plain[f"transformer.h.0.mlp.c_proj.{name}"].zero_()
        plain[f"transformer.h.1.mlp.c_proj.{name}"].zero_()
    raised = {name: tensor.clone() for name, tensor in plain.items()}
    for layer in range(inputs.config.n_layer):
        _multiply_queries(raised, layer, layer + 1.0)
    off = on.but(scale_attn_by_inverse_layer_idx=False).config
    divided = logits_of(build(subject, inputs.config, raised), inputs.input_ids, raised)
    undivided = logits_of(build(subject, off, plain), inputs.input_ids, plain)
    tolerances = [
        Allowed(inputs.config, raised, inputs.input_ids).one_call,
        Allowed(off, plain, inputs.input_ids).one_call,
    ]
    check_within(
        divided,
        undivided.double(),
        tolerances[0] + tolerances[1],
        what="logits",
        message="scale_attn_by_inverse_layer_idx does not divide layer l's scores by l + 1",
    )

"""Laws of the block: linear maps, packed projection, residuals, order, scales."""

import torch
from hypothesis import strategies as st

from attnspec.conformance.law import Judged, law
from attnspec.conformance.model_activation import ACTIVATIONS
from attnspec.conformance.model_case import ModelCase, draw, draw_weights, model_cases, normal
from attnspec.conformance.model_judge import Allowed, ask, build, hold, hold_to_oracle
from attnspec.conformance.model_probe import PINNED, coarse_rows, normalized, probe
from attnspec.spec import ModelImplementation

_HEADS = tuple(case for case in PINNED if case.n_head > 1)


def _cases(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, n_inner=None, activation_function="gelu_new", tied=True)


def _blocks(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, activation_function="gelu_new", tied=True)


def _coarse(case: ModelCase, purpose: str, *shape: int) -> torch.Tensor:
    """Normal numbers of a case in steps of 1/256."""
    return (normal(case.seed, purpose, *shape) * 256).round() / 256


@law("GPT-1", judges=Judged.MODEL, pinned=PINNED, explore=_cases, cost=3.0)
def law_linear_maps_are_stored_input_major(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-1: a linear map is xW + b with W stored (in, out), also where W is square."""
    rows = coarse_rows(case)
    width = rows.shape[1]
    # attention over equal values gives that value, whatever the weights
    value = _coarse(case, "value", width)
    packed = torch.cat([torch.zeros(2 * width).double(), value])
    weight, bias = _coarse(case, "weight", width, width), _coarse(case, "bias", width)
    hidden = 1 + value.abs()  # above zero: relu lets it pass
    shown = probe(rows, case, activation_function="relu", n_inner=width)
    attention = shown.but(
        attn__c_attn__bias=packed, attn__c_proj__weight=weight, attn__c_proj__bias=bias
    )
    inside = {"ln_2__weight": torch.zeros(width), "mlp__c_proj__weight": torch.eye(width)}
    first = shown.but(**inside, ln_2__bias=value, mlp__c_fc__weight=weight, mlp__c_fc__bias=bias)
    second = shown.but(mlp__c_fc__bias=hidden, mlp__c_proj__weight=weight, mlp__c_proj__bias=bias)
    added = {
        "attn.c_proj": (attention, value @ weight + bias),
        "mlp.c_fc": (first, (value @ weight + bias).clamp(min=0)),
        "mlp.c_proj": (second, hidden @ weight + bias),
    }
    for name, (each, branch) in added.items():
        hold(
            each.read(subject),
            normalized(each.stream + branch, case.layer_norm_epsilon),
            each.gate,
            what="final LayerNorm",
            message=f"{name} does not compute xW + b with W stored (in, out)",
        )


@law("GPT-2", judges=Judged.MODEL, pinned=_HEADS, explore=_blocks)
def law_packed_projection_holds_queries_keys_values(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-2: the columns of c_attn are queries, then keys, then values, each head by head."""
    config = case.config
    weights = draw_weights(config, seed=case.seed, spread=0.5, dtype=case.dtype)
    for name in ("weight", "bias"):
        weights[f"transformer.h.0.mlp.c_proj.{name}"].zero_()
    hold_to_oracle(
        subject,
        config,
        weights,
        draw(case).input_ids,
        "attention alone, without the MLP: c_attn is not read as queries, keys, values by heads",
    )


@law("GPT-3", judges=Judged.MODEL, pinned=PINNED, explore=_cases, cost=4.0)
def law_each_branch_adds_to_the_stream(subject: ModelImplementation, case: ModelCase) -> None:
    """GPT-3: a block gives what entered it, plus what attention adds, plus what the MLP adds."""
    rows = coarse_rows(case)
    shown = probe(rows, case)
    width = rows.shape[1]
    first, second = _coarse(case, "attention", width), _coarse(case, "mlp", width)
    both = {"attn__c_proj__bias": first, "mlp__c_proj__bias": second}
    for opened in ([], ["attn__c_proj__bias"], ["mlp__c_proj__bias"], list(both)):
        given = shown.but(**{name: both[name] for name in opened})
        added = sum((both[name] for name in opened), torch.zeros(width).double())
        hold(
            given.read(subject),
            normalized(given.stream + added, case.layer_norm_epsilon),
            given.gate,
            what="final LayerNorm",
            message=f"the stream is not the embeddings plus {len(opened)} constant branches",
        )


@law("GPT-4", judges=Judged.MODEL, pinned=PINNED, explore=_cases)
def law_layer_norms_stand_inside_the_branches(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-4: LayerNorm comes before attention and MLP and never touches the stream itself."""
    rows = coarse_rows(case)
    width = rows.shape[1]
    shown = probe(rows, case, n_inner=width)
    none, identity = torch.zeros(width).double(), torch.eye(width).double()
    first, second = _coarse(case, "first", width), _coarse(case, "second", width)
    # a gain of zero makes the input of a branch its bias, whatever the stream holds
    shown = shown.but(
        ln_1__weight=none,
        ln_1__bias=first,
        ln_2__weight=none,
        ln_2__bias=second,
        attn__c_attn__weight=torch.cat([0 * identity, 0 * identity, identity], 1),
        attn__c_proj__weight=identity,
        mlp__c_fc__weight=identity,
        mlp__c_proj__weight=identity,
    )
    added = first + ACTIVATIONS["gelu_new"].value(second)
    hold(
        shown.read(subject),
        normalized(shown.stream + added, case.layer_norm_epsilon),
        shown.gate,
        what="final LayerNorm",
        message="the branches do not read ln_1 and ln_2, or these change the stream",
    )


@law("GPT-5", judges=Judged.MODEL, pinned=PINNED, explore=_blocks)
def law_the_mlp_reads_the_stream_after_attention(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-5: y = h + MLP(LayerNorm(h)) with h = x + attention(LayerNorm(x))."""
    case = case.but(activation_function="gelu_new")
    weights = draw_weights(case.config, seed=case.seed, spread=0.3, dtype=case.dtype)
    hold_to_oracle(
        subject,
        case.config,
        weights,
        draw(case).input_ids,
        "one block of random weights: it is not attention, then MLP, each on the stream so far",
    )


_SCALED = tuple(
    case.but(n_head=heads, d_head=4, length=4, n_positions=6) for heads, case in
    zip((1, 1, 2, 2), PINNED[:4], strict=True)
)  # fmt: skip


def _fours(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=1, d_head=4, scale_attn_weights=True, tied=True)


def _queries_times(weights: dict[str, torch.Tensor], layer: int, factor: float) -> None:
    """Multiply the queries of one layer, in place."""
    own = f"transformer.h.{layer}.attn.c_attn"
    width = weights[f"{own}.weight"].shape[0]
    weights[f"{own}.weight"][:, :width] *= factor
    weights[f"{own}.bias"][:width] *= factor


@law("GPT-6", judges=Judged.MODEL, pinned=_SCALED, explore=_fours, cost=2.0)
def law_scale_attn_weights_divides_scores_by_the_root_of_d_head(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-6: without scale_attn_weights, queries divided by √d_head give the same logits."""
    inputs = draw(case.but(initializer_range=0.4, scale_attn_weights=True))
    halved = {name: each.clone() for name, each in inputs.state_dict.items()}
    _queries_times(halved, 0, 0.5)
    off = case.but(scale_attn_weights=False).config
    with_scale = ask(build(subject, inputs.config, inputs.state_dict), inputs.input_ids, halved)
    without = ask(build(subject, off, halved), inputs.input_ids, halved)
    gates = [
        Allowed(inputs.config, inputs.state_dict, inputs.input_ids).logits,
        Allowed(off, halved, inputs.input_ids).logits,
    ]
    hold(
        with_scale,
        without.double(),
        gates[0] + gates[1],
        what="logits",
        message="scale_attn_weights is not a factor 1/sqrt(d_head) of the scores",
    )


_LAYERED = tuple(
    case.but(n_layer=2, n_head=heads, d_head=3, length=4, n_positions=6) for heads, case in
    zip((1, 1, 2, 2), PINNED[:4], strict=True)
)  # fmt: skip


def _layers(subject: ModelImplementation) -> st.SearchStrategy[ModelCase]:
    return model_cases(subject, n_layer=2, scale_attn_by_inverse_layer_idx=True, tied=True)


@law("GPT-7", judges=Judged.MODEL, pinned=_LAYERED, explore=_layers, cost=2.0)
def law_inverse_layer_index_divides_scores_by_the_layer(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-7: with scale_attn_by_inverse_layer_idx, queries of layer l times l + 1 undo it."""
    on = case.but(initializer_range=0.3, scale_attn_by_inverse_layer_idx=True)
    inputs = draw(on)
    plain = {name: each.clone() for name, each in inputs.state_dict.items()}
    # the MLP of the first layer stays out: fewer steps, so that float32 still tells
    for name in ("weight", "bias"):
        plain[f"transformer.h.0.mlp.c_proj.{name}"].zero_()
        plain[f"transformer.h.1.mlp.c_proj.{name}"].zero_()
    raised = {name: each.clone() for name, each in plain.items()}
    for layer in range(inputs.config.n_layer):
        _queries_times(raised, layer, layer + 1.0)
    off = on.but(scale_attn_by_inverse_layer_idx=False).config
    divided = ask(build(subject, inputs.config, raised), inputs.input_ids, raised)
    undivided = ask(build(subject, off, plain), inputs.input_ids, plain)
    gates = [
        Allowed(inputs.config, raised, inputs.input_ids).logits,
        Allowed(off, plain, inputs.input_ids).logits,
    ]
    hold(
        divided,
        undivided.double(),
        gates[0] + gates[1],
        what="logits",
        message="scale_attn_by_inverse_layer_idx does not divide layer l's scores by l + 1",
    )

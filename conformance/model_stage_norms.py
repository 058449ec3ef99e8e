"""The LayerNorms and residuals of one block: experiments whose branches are the identity."""

import torch

from attnspec.conformance.model_stage_bench import EYE, ROW, WIDTH, ZERO, Bench, coarse, opened
from attnspec.conformance.model_stage_names import Stage

_SAME = torch.cat([EYE, EYE, EYE], 1)
_EPSILONS = (0.25, 1e-5)
_SHIFT = 1024.0
_AFFINE = {"weight": 1 + coarse("gain", WIDTH) / 2, "bias": coarse("bias", WIDTH)}


def norm_touches_nothing(bench: Bench, layer: int, name: str) -> bool:
    """Where both branches add zero, what the LayerNorms compute is not felt."""
    shown = bench.closed(coarse("stream", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    other = {f"{name}__weight": ZERO, f"{name}__bias": ROW}
    return bench.same(shown, opened(shown, layer, **other))


def first_norm(bench: Bench, layer: int) -> Stage | None:
    """Blame the first LayerNorm or the residual, where the maps that lead out are the identity."""
    maps = {"attn__c_attn__weight": _SAME, "attn__c_proj__weight": EYE}
    # over one token attention gives its value, whatever the scores and the mask
    alone = coarse("alone", 5, 1, WIDTH)
    if not _norm_is_right(bench, layer, "ln_1", maps, alone):
        if not adds_to_stream(bench, layer, "attn__c_proj__bias"):
            return Stage.FIRST_RESIDUAL
        if _are_embeddings_changed(bench, layer):
            return Stage.EMBEDDING
        wrong = _branch_is_wrong(bench, layer, "ln_1", maps, alone, "attn__c_proj__weight")
        return None if wrong else Stage.FIRST_NORM
    # over several, a token whose normalized row is long enough reads itself alone
    sharp = maps | {"attn__c_attn__weight": torch.cat([EYE * 2**5, EYE * 2**5, EYE], 1)}
    several = bench.closed(coarse("several", 1, 4, WIDTH), n_layer=layer + 1)
    rows_meet = not bench.adds_as_due(opened(several, layer, **sharp))
    return Stage.FIRST_NORM if rows_meet and _tokens_meet(bench) else None


def second_norm(bench: Bench, layer: int) -> Stage | None:
    """Blame the second LayerNorm or the residual, where an MLP that is the identity is wrong."""
    if not adds_to_stream(bench, layer, "mlp__c_proj__bias"):
        return Stage.SECOND_RESIDUAL
    rows = coarse("tokens", 2, 3, WIDTH)
    wrong = _branch_is_wrong(
        bench, layer, "ln_2", _mirror(), rows, "mlp__c_proj__weight", **relu(bench)
    )
    return None if wrong else Stage.SECOND_NORM


def is_mirror_right(bench: Bench, layer: int) -> bool:
    """Whether an MLP that is the identity adds the second LayerNorm to the stream."""
    rows = coarse("tokens", 2, 3, WIDTH)
    return _norm_is_right(bench, layer, "ln_2", _mirror(), rows, **relu(bench))


def _norm_is_right(
    bench: Bench,
    layer: int,
    name: str,
    maps: dict[str, torch.Tensor],
    rows: torch.Tensor,
    **config: object,
) -> bool:
    """Whether a branch that is the identity adds LayerNorm: gain, bias, epsilon, a far mean."""
    affine = {f"{name}__{part}": each for part, each in _AFFINE.items()}
    for epsilon in _EPSILONS:
        for shift in (0.0, _SHIFT):
            shown = bench.closed(
                rows + shift, n_layer=layer + 1, layer_norm_epsilon=epsilon, **config
            )
            if not bench.adds_as_due(opened(shown, layer, **maps, **affine)):
                return False
    return True


def _branch_is_wrong(
    bench: Bench,
    layer: int,
    name: str,
    maps: dict[str, torch.Tensor],
    rows: torch.Tensor,
    out: str,
    **config: object,
) -> bool:
    """Whether a branch is wrong on rows that hardly any LayerNorm can get wrong.

    That is its bias, where the gain is zero, and a row that is normalized already.
    """
    known = torch.tensor([1.0, -1.0] * (WIDTH // 2)).double().expand(rows.shape)
    fixed = {f"{name}__weight": ZERO, f"{name}__bias": ROW}
    shown = bench.closed(rows, n_layer=layer + 1, **config)
    even = bench.closed(known, n_layer=layer + 1, layer_norm_epsilon=0.0, **config)
    # else what is added is a multiple of the row, which the final LayerNorm would not show
    uneven = maps | {out: maps[out] @ torch.arange(1.0, WIDTH + 1).diag().double()}
    return not (
        bench.adds_as_due(opened(shown, layer, **maps, **fixed))
        or bench.adds_as_due(opened(even, layer, **uneven))
    )


def _tokens_meet(bench: Bench) -> bool:
    """Whether a token is felt by earlier ones without attention: LayerNorm keeps to no row."""
    rows = coarse("meet", 1, 4, WIDTH)
    other = torch.cat([rows[:, :3], -2 * rows[:, 3:]], 1)
    one, two = (bench.closed(each, layer_norm_epsilon=0.25) for each in (rows, other))
    return not bench.same(one, two, tokens=3)


def adds_to_stream(bench: Bench, layer: int, bias: str) -> bool:
    """Whether something is added where a branch is a constant row, to a stream that is kept."""
    rows = coarse("adds", 2, 3, WIDTH)
    shown = bench.closed(rows, n_layer=layer + 1, layer_norm_epsilon=0.25)
    other = bench.closed(-2 * rows, n_layer=layer + 1, layer_norm_epsilon=0.25)
    more = bench.closed(rows, n_layer=layer + 2, layer_norm_epsilon=0.25)
    is_kept = bench.same(shown, more) and not bench.same(shown, other)
    return is_kept and not bench.same(shown, opened(shown, layer, **{bias: ROW}))


def _are_embeddings_changed(bench: Bench, layer: int) -> bool:
    """Whether constant rows add to each other, yet neither to what the embeddings gave."""
    biases = ("attn__c_proj__bias", "mlp__c_proj__bias")
    shown = bench.closed(coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=0.25)
    both = opened(shown, layer, **dict.fromkeys(biases, ROW))
    return bench.same(both, opened(shown, layer, **{biases[0]: 2 * ROW})) and not any(
        bench.adds_as_due(opened(shown, layer, **{bias: ROW})) for bias in biases
    )


def relu(bench: Bench) -> dict[str, object]:
    """Ask for relu where it is claimed: its two halves make the identity, and it is plain."""
    return {"activation_function": "relu"} if bench.claims(activation_function="relu") else {}


def _mirror() -> dict[str, torch.Tensor]:
    """Maps that make an MLP the identity under every activation with f(x) - f(-x) = x."""
    rest = torch.zeros(WIDTH, 2 * WIDTH).double()
    pair = torch.cat([EYE, -EYE, rest], 1)
    return {"mlp__c_fc__weight": pair, "mlp__c_proj__weight": pair.mT}


def reads_after_attention(bench: Bench, layer: int) -> bool:
    """Whether the second LayerNorm reads the stream to which attention has added a row."""
    shown = bench.closed(coarse("after", 2, 3, WIDTH), n_layer=layer + 1, **relu(bench))
    return bench.adds_as_due(opened(shown, layer, **_mirror(), attn__c_proj__bias=ROW))

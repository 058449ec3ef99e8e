"""Experiments that find the wrong stage of a block of a GPT-2, in the order of the forward pass.

Each experiment opens as little of the block as possible. Its description names the model
parameters that it sets.
"""

from collections.abc import Iterator, Sequence

import torch

from attnspec.conformance.diagnosis.stages.names import NORMS, Divergence, Stage
from attnspec.conformance.diagnosis.stages.testbed import (
    EYE,
    ROW,
    WIDTH,
    ZERO,
    Testbed,
    coarse,
    opened_readout,
)
from attnspec.conformance.models.case import ACTIVATIONS, draw_parameters
from attnspec.conformance.models.readout import Readout

FIRST_NORM_CHANGES = "branches that add zero, and other parameters of ln_1"
SECOND_NORM_CHANGES = "branches that add zero, and other parameters of ln_2"
IDENTITY_ATTENTION = "attention over one token, all of whose maps are the identity"
CONSTANT_ATTENTION = "attention that adds a constant row, and an MLP that is the identity"

CLAUSES_OF_EXPERIMENT = {
    # LayerNorm at another place
    FIRST_NORM_CHANGES: frozenset({"GPT-4"}),
    SECOND_NORM_CHANGES: frozenset({"GPT-4", "GPT-5"}),
    CONSTANT_ATTENTION: frozenset({"GPT-4", "GPT-5"}),
    # LayerNorm of another formula
    IDENTITY_ATTENTION: NORMS,
}
"""The clauses that some experiments show to be broken: fewer than all of their stage."""


def divergence_in_block(testbed: Testbed, layer: int) -> Divergence | None:
    """Return the first stage of a block that diverges, given that all earlier stages are right.

    All blocks have the same stages, so a later one is examined only if it is wrong as a whole.
    """
    if layer > 0:
        if _is_block_right(testbed, layer):
            return None
        divergence = _divergence_between_blocks(testbed, layer)
        if divergence is not None:
            return divergence
    testbed.diverged = None
    for stage, is_right, experiment in _experiments(testbed, layer):
        if not is_right:
            place = None if stage is Stage.EMBEDDING else layer
            is_norm = stage in (Stage.FIRST_NORM, Stage.SECOND_NORM)
            return Divergence(
                stage=stage,
                layer=place,
                experiment=experiment,
                clauses=CLAUSES_OF_EXPERIMENT.get(experiment) if is_norm else None,
                mixes_rows=is_norm and _norm_mixes_rows(testbed),
            )
        testbed.diverged = None
    return None


def _experiments(testbed: Testbed, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    """Run experiments; yield the stage, whether the subject is right, and a description."""
    yield (
        Stage.FIRST_NORM,
        closed_norm_has_no_effect(testbed, layer, "ln_1"),
        FIRST_NORM_CHANGES,
    )
    norm = first_norm_blame(testbed, layer)
    if norm is not None:
        yield norm, False, IDENTITY_ATTENTION
    yield from _attention_experiments(testbed, layer)
    yield (
        Stage.SECOND_NORM,
        closed_norm_has_no_effect(testbed, layer, "ln_2"),
        SECOND_NORM_CHANGES,
    )
    if is_identity_mlp_right(testbed, layer):
        yield (
            Stage.SECOND_NORM,
            second_norm_reads_attention(testbed, layer),
            CONSTANT_ATTENTION,
        )
    else:
        norm = second_norm_blame(testbed, layer)
        if norm is not None:
            yield norm, False, "an MLP without attention that is the identity, relu(x) - relu(-x)"
        testbed.diverged = None  # by the MLP
    yield from _mlp_experiments(testbed, layer)
    yield Stage.BLOCK, _is_block_right(testbed, layer), "a whole block of random parameters"
    if layer == 0:
        yield (
            Stage.BLOCK,
            _is_closed_block_identity(testbed),
            "branches that add zero, and no block at all",
        )


def _is_closed_block_identity(testbed: Testbed) -> bool:
    """Return whether a closed block has no effect; True if every model must have a block."""
    rows = coarse("identity", 2, 3, WIDTH)
    none, one = (
        testbed.closed_readout(rows, n_layer=layers, layer_norm_epsilon=testbed.epsilon)
        for layers in (0, 1)
    )
    if not (testbed.claims(n_layer=0) and testbed.gives_logits(none)):
        return True
    return testbed.same_readings(none, one)


def _divergence_between_blocks(testbed: Testbed, layer: int) -> Divergence | None:
    """Find a block that uses the parameters of another, or that runs in its place."""
    readout = testbed.closed_readout(
        coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=testbed.epsilon
    )
    bias = {"attn__c_proj__bias": ROW}
    if not testbed.same_readings(
        opened_readout(readout, layer, **bias), opened_readout(readout, 0, **bias)
    ):
        return Divergence(
            stage=Stage.BLOCK,
            layer=layer,
            experiment="a constant row, added by this block or by the first",
        )
    rows = coarse("order", 1, 4, WIDTH)
    closed = testbed.closed_readout(rows, n_layer=layer + 1)
    first, last = (_random_weights(testbed, closed, seed) for seed in (1, 2))
    ordered = opened_readout(opened_readout(closed, 0, **first), layer, **last)
    swapped = opened_readout(opened_readout(closed, 0, **last), layer, **first)
    expected = testbed.closed_readout(testbed.expected_stream(swapped), n_layer=layer + 1)
    if testbed.same_readings(ordered, expected) and not testbed.same_readings(swapped, expected):
        return Divergence(stage=Stage.ORDER, experiment="two blocks of random parameters")
    return None


def _random_weights(testbed: Testbed, readout: Readout, seed: int) -> dict[str, torch.Tensor]:
    """Draw random parameters for one block."""
    drawn = draw_parameters(readout.config, seed=seed, spread=0.3, dtype=testbed.dtype)
    own = "transformer.h.0."
    return {
        name.removeprefix(own).replace(".", "__"): tensor
        for name, tensor in drawn.items()
        if name.startswith(own)
    }


def _is_block_right(testbed: Testbed, layer: int) -> bool:
    """Return whether a block of random parameters is right, every stage at once."""
    for heads, shape, switches in (
        (1, (1, 3), {}),
        (3, (2, 5), {"scale_attn_by_inverse_layer_idx": True}),
        (2, (2, 4), {"scale_attn_weights": False, "layer_norm_epsilon": 0.25}),
    ):
        if not testbed.claims(**switches):
            continue
        rows = coarse("whole", *shape, WIDTH)
        readout = testbed.closed_readout(rows, n_layer=layer + 1, n_head=heads, **switches)
        weights = _random_weights(testbed, readout, 7)
        if not testbed.makes_expected_stream(opened_readout(readout, layer, **weights)):
            return False
    return True


_IDENTITY_MAPS = torch.cat([EYE, EYE, EYE], 1)
_SHIFT = 1024.0
_AFFINE = {"weight": 1 + coarse("gain", WIDTH) / 2, "bias": coarse("bias", WIDTH)}


def closed_norm_has_no_effect(testbed: Testbed, layer: int, name: str) -> bool:
    """Return whether a LayerNorm has no effect if both branches add zero."""
    readout = testbed.closed_readout(
        coarse("stream", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=testbed.epsilon
    )
    other = {f"{name}__weight": ZERO, f"{name}__bias": ROW}
    return testbed.same_readings(readout, opened_readout(readout, layer, **other))


def first_norm_blame(testbed: Testbed, layer: int) -> Stage | None:
    """Return the stage to blame if attention with identity maps adds a wrong LayerNorm."""
    maps = {"attn__c_attn__weight": _IDENTITY_MAPS, "attn__c_proj__weight": EYE}
    # with one token, attention returns its value for any scores and mask
    single = coarse("alone", 5, 1, WIDTH)
    if not _norm_is_right(testbed, layer, "ln_1", maps, single):
        if not adds_to_stream(testbed, layer, "attn__c_proj__bias"):
            return Stage.FIRST_RESIDUAL
        if _are_embeddings_changed(testbed, layer):
            return Stage.EMBEDDING
        wrong = _branch_is_wrong(testbed, layer, "ln_1", maps, single, "attn__c_proj__weight")
        return None if wrong else Stage.FIRST_NORM
    # with several tokens and long normalized rows, each token attends to itself only
    sharp = maps | {"attn__c_attn__weight": torch.cat([EYE * 2**5, EYE * 2**5, EYE], 1)}
    several = testbed.closed_readout(coarse("several", 1, 4, WIDTH), n_layer=layer + 1)
    rows_mix = not testbed.makes_expected_stream(opened_readout(several, layer, **sharp))
    return Stage.FIRST_NORM if rows_mix and _norm_mixes_tokens(testbed) else None


def second_norm_blame(testbed: Testbed, layer: int) -> Stage | None:
    """Return the stage to blame if an MLP that is the identity adds a wrong LayerNorm."""
    if not adds_to_stream(testbed, layer, "mlp__c_proj__bias"):
        return Stage.SECOND_RESIDUAL
    rows = coarse("tokens", 2, 3, WIDTH)
    wrong = _branch_is_wrong(
        testbed, layer, "ln_2", _identity_mlp(), rows, "mlp__c_proj__weight", **relu(testbed)
    )
    return None if wrong else Stage.SECOND_NORM


def is_identity_mlp_right(testbed: Testbed, layer: int) -> bool:
    """Return whether an MLP that is the identity adds the second LayerNorm to the stream."""
    rows = coarse("tokens", 2, 3, WIDTH)
    return _norm_is_right(testbed, layer, "ln_2", _identity_mlp(), rows, **relu(testbed))


def _norm_is_right(
    testbed: Testbed,
    layer: int,
    name: str,
    maps: dict[str, torch.Tensor],
    rows: torch.Tensor,
    **config: object,
) -> bool:
    """Return whether an identity branch adds LayerNorm, for two epsilons and a large mean."""
    affine = {f"{name}__{part}": tensor for part, tensor in _AFFINE.items()}
    for epsilon in testbed.claimed_epsilons(0.25, 1e-5):
        for shift in (0.0, _SHIFT):
            readout = testbed.closed_readout(
                rows + shift, n_layer=layer + 1, layer_norm_epsilon=epsilon, **config
            )
            if not testbed.makes_expected_stream(opened_readout(readout, layer, **maps, **affine)):
                return False
    return True


def _branch_is_wrong(
    testbed: Testbed,
    layer: int,
    name: str,
    maps: dict[str, torch.Tensor],
    rows: torch.Tensor,
    out: str,
    **config: object,
) -> bool:
    """Return whether a branch is wrong on rows on which almost any LayerNorm is right.

    These are the bias, for a gain of zero, and rows that are normalized already.
    """
    normalized = torch.tensor([1.0, -1.0] * (WIDTH // 2)).double().expand(rows.shape)
    fixed = {f"{name}__weight": ZERO, f"{name}__bias": ROW}
    readout = testbed.closed_readout(rows, n_layer=layer + 1, **config)
    (epsilon, *_) = testbed.claimed_epsilons(0.0, 1e-12, 1e-5)
    even = testbed.closed_readout(
        normalized, n_layer=layer + 1, layer_norm_epsilon=epsilon, **config
    )
    # scale the channels: the final LayerNorm hides an added multiple of the row itself
    uneven = maps | {out: maps[out] @ torch.arange(1.0, WIDTH + 1).diag().double()}
    return not (
        testbed.makes_expected_stream(opened_readout(readout, layer, **maps, **fixed))
        or testbed.makes_expected_stream(opened_readout(even, layer, **uneven))
    )


def _norm_mixes_tokens(testbed: Testbed) -> bool:
    """Return whether LayerNorm mixes rows: whether earlier tokens depend on later ones."""
    rows = coarse("meet", 1, 4, WIDTH)
    other = torch.cat([rows[:, :3], -2 * rows[:, 3:]], 1)
    one, two = (
        testbed.closed_readout(stream, layer_norm_epsilon=testbed.epsilon)
        for stream in (rows, other)
    )
    return not testbed.same_readings(one, two, tokens=3)


def _norm_mixes_rows(testbed: Testbed) -> bool:
    """Return whether LayerNorm mixes the tokens of a sequence, or the sequences of a batch."""
    rows = coarse("sequences", 2, 3, WIDTH)
    other = torch.cat([rows[:1], -2 * rows[1:]])
    one, two = (
        testbed.closed_readout(stream, layer_norm_epsilon=testbed.epsilon)
        for stream in (rows, other)
    )
    return _norm_mixes_tokens(testbed) or not testbed.same_readings(one, two, sequences=1)


def adds_to_stream(testbed: Testbed, layer: int, bias: str) -> bool:
    """Return whether a branch that is a constant row changes a stream that is otherwise kept."""
    rows = coarse("adds", 2, 3, WIDTH)
    readout = testbed.closed_readout(rows, n_layer=layer + 1, layer_norm_epsilon=testbed.epsilon)
    other = testbed.closed_readout(-2 * rows, n_layer=layer + 1, layer_norm_epsilon=testbed.epsilon)
    more = testbed.closed_readout(rows, n_layer=layer + 2, layer_norm_epsilon=testbed.epsilon)
    is_kept = testbed.same_readings(readout, more) and not testbed.same_readings(readout, other)
    return is_kept and not testbed.same_readings(
        readout, opened_readout(readout, layer, **{bias: ROW})
    )


def _are_embeddings_changed(testbed: Testbed, layer: int) -> bool:
    """Return whether constant rows add to each other, but neither adds to the embeddings."""
    biases = ("attn__c_proj__bias", "mlp__c_proj__bias")
    readout = testbed.closed_readout(
        coarse("adds", 2, 3, WIDTH), n_layer=layer + 1, layer_norm_epsilon=testbed.epsilon
    )
    both = opened_readout(readout, layer, **dict.fromkeys(biases, ROW))
    return testbed.same_readings(
        both, opened_readout(readout, layer, **{biases[0]: 2 * ROW})
    ) and not any(
        testbed.makes_expected_stream(opened_readout(readout, layer, **{bias: ROW}))
        for bias in biases
    )


def relu(testbed: Testbed) -> dict[str, object]:
    """Select relu if it is claimed: f(x) - f(-x) = x holds for it exactly."""
    return {"activation_function": "relu"} if testbed.claims(activation_function="relu") else {}


def _identity_mlp() -> dict[str, torch.Tensor]:
    """Return maps that make an MLP the identity for any activation with f(x) - f(-x) = x."""
    rest = torch.zeros(WIDTH, 2 * WIDTH).double()
    pair = torch.cat([EYE, -EYE, rest], 1)
    return {"mlp__c_fc__weight": pair, "mlp__c_proj__weight": pair.mT}


def second_norm_reads_attention(testbed: Testbed, layer: int) -> bool:
    """Return whether the second LayerNorm reads the stream after attention has added a row."""
    readout = testbed.closed_readout(
        coarse("after", 2, 3, WIDTH), n_layer=layer + 1, **relu(testbed)
    )
    return testbed.makes_expected_stream(
        opened_readout(readout, layer, **_identity_mlp(), attn__c_proj__bias=ROW)
    )


_VALUES = torch.cat([0 * EYE, 0 * EYE, EYE], 1)


def _attention_experiments(testbed: Testbed, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    """Test attention: its maps and heads with one token, then mask, scale and products."""

    def is_right(
        rows: Sequence[int], heads: int, weights: dict[str, torch.Tensor], **config: object
    ) -> bool:
        stream = coarse("attention", *rows, WIDTH)
        readout = testbed.closed_readout(stream, n_layer=layer + 1, n_head=heads, **config)
        return testbed.makes_expected_stream(opened_readout(readout, layer, **weights))

    third, square = coarse("third", WIDTH, WIDTH) / 2, coarse("square", WIDTH, WIDTH)
    packed = {
        "attn__c_attn__weight": coarse("packed", WIDTH, 3 * WIDTH) / 2,
        "attn__c_attn__bias": coarse("packed bias", 3 * WIDTH) / 2,
    }
    equal = {
        "attn__c_attn__weight": torch.cat([third] * 3, 1),
        "attn__c_attn__bias": coarse("third bias", WIDTH).repeat(3),
    }
    out = {"attn__c_proj__weight": square, "attn__c_proj__bias": coarse("out", WIDTH)}
    fixed = {"ln_1__weight": ZERO, "ln_1__bias": ROW}
    yield (
        Stage.PROJECTIONS,
        is_right((6, 1), 1, fixed | equal | out),
        "a known row from ln_1, one token, one head, queries, keys and values alike",
    )
    for heads in (1, 2, 3):
        yield (
            Stage.HEADS,
            is_right((6, 1), heads, fixed | packed | out),
            f"a known row from ln_1, one token, heads: {heads}",
        )
    identity = {"attn__c_proj__weight": EYE}
    yield (
        Stage.MASK,
        is_right((2, 5), 1, identity | {"attn__c_attn__weight": _VALUES}),
        "queries and keys of zero, so that every token averages those it may read",
    )
    # a token's score with itself is its smallest, so hidden keys have larger ones
    large = torch.cat([-EYE, 2.0**15 * EYE, EYE], 1)
    yield (
        Stage.MASK,
        is_right((1, 5), 1, identity | {"attn__c_attn__weight": large}),
        "keys 32768 times as long as queries, so that hidden keys have the largest scores",
    )
    yield (
        Stage.HEADS,
        is_right((2, 3), 2, fixed | packed | out),
        "the same row from ln_1 at every token, two heads",
    )
    shared = identity | {"attn__c_attn__weight": equal["attn__c_attn__weight"]}
    for switches in (
        {},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
    ):
        if testbed.claims(**switches):
            settings = ", ".join(f"{name}={value}" for name, value in switches.items())
            yield (
                Stage.SCALE,
                is_right((1, 4), 2, shared, **switches),
                f"queries, keys and values alike, two heads, {settings or 'defaults'}",
            )
    yield Stage.HEADS, is_right((1, 4), 2, packed | out), "one sequence, random maps, two heads"
    yield Stage.BATCH, is_right((3, 4), 2, packed | out), "three sequences, random maps, two heads"


def _mlp_experiments(testbed: Testbed, layer: int) -> Iterator[tuple[Stage, bool, str]]:
    """Test the MLP: its maps in the range of an identity activation, then each activation."""
    rows = coarse("mlp", 1, 3, WIDTH)
    fixed = {"ln_2__weight": ZERO, "ln_2__bias": ROW}
    for inner in (None, WIDTH, WIDTH - 1):
        config = {"n_inner": inner, **relu(testbed)}
        if not testbed.claims(**config):
            continue
        width = 4 * WIDTH if inner is None else inner
        # far above zero, every activation but tanh is the identity
        maps = {
            "mlp__c_fc__weight": coarse(f"up {inner}", WIDTH, width),
            "mlp__c_fc__bias": 32 + coarse(f"up bias {inner}", width),
            "mlp__c_proj__weight": coarse(f"down {inner}", width, WIDTH) / 8,
            "mlp__c_proj__bias": coarse("down bias", WIDTH),
        }
        readout = testbed.closed_readout(rows, n_layer=layer + 1, **config)
        yield (
            Stage.MLP_MAPS,
            testbed.makes_expected_stream(opened_readout(readout, layer, **fixed, **maps)),
            f"the same row from ln_2 at every token, n_inner={inner}, an activation far above zero",
        )
    for name in ACTIVATIONS:
        if testbed.claims(activation_function=name):
            yield (
                Stage.ACTIVATION,
                _is_activation_right(testbed, layer, name),
                f"known numbers from ln_2, and maps that are the identity, under {name}",
            )


def _is_activation_right(testbed: Testbed, layer: int, name: str) -> bool:
    width = 16
    eye, zeros = torch.eye(width).double(), torch.zeros(width, 3 * width).double()
    up = torch.cat([eye, zeros], 1)
    for largest in (3.0, 24.0):
        readout = testbed.closed_readout(
            coarse("activation", 1, 2, width), n_layer=layer + 1, activation_function=name
        )
        weights = {
            "ln_2__weight": torch.zeros(width),
            "ln_2__bias": torch.linspace(-largest, largest, width).double(),
            "mlp__c_fc__weight": up,
            "mlp__c_proj__weight": up.mT,
        }
        if not testbed.makes_expected_stream(opened_readout(readout, layer, **weights)):
            return False
    return True

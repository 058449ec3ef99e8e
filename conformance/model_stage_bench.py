"""The bench on which a broken GPT-2 is narrowed down: models of which all but one stage is known.

A black box shows logits only, and its final LayerNorm or its head may be what is wrong. So nothing
is read off them: the subject is its own measure. One model has the stage in question open; another
has every branch closed and gets, as its embeddings, the stream that the oracle computes for the
first. Where the stage is right, both carry the same stream into whatever follows, and answer alike.
"""

import hashlib
from dataclasses import replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float64

from attnspec.conformance.model_case import ModelCase, normal
from attnspec.conformance.model_judge import Allowed, ask, build, doubled, model_oracle
from attnspec.conformance.model_probe import Probe, probe
from attnspec.conformance.subject import Raised
from attnspec.conformance.tally import NotClaimed
from attnspec.conformance.violation import Violation
from attnspec.spec import GPT2Config, ModelImplementation

Key = TypeVar("Key")

WIDTH = 6
"""Channels of the stream: a whole number of one, two and three heads."""


def coarse(purpose: str, *shape: int) -> Float64[torch.Tensor, "..."]:
    """Normal numbers in steps of 1/256, of which sums and small multiples are exact."""
    return (normal(5, f"stage/{purpose}", *shape) * 256).round() / 256


ZERO, EYE = torch.zeros(WIDTH).double(), torch.eye(WIDTH).double()
ROW = coarse("row", WIDTH)
"""A row that some branch adds to the stream, or that a LayerNorm gives whatever it reads."""


def alike(one: torch.Tensor, two: torch.Tensor, slack: torch.Tensor) -> bool:
    """True where two readings agree but for rounding.

    The slack is that of right readings. Wrong ones may be larger, and err as much more.
    """
    one, two = one.double(), two.double()
    largest = torch.maximum(one.abs(), two.abs()).nan_to_num(0.0, 0.0, 0.0)
    close = (one - two).abs() <= slack.amax() * (1 + largest)
    return bool((close | (one == two) | (one.isnan() & two.isnan())).all())


class Bench:
    """One subject, and what can be asked of it."""

    def __init__(self, subject: ModelImplementation) -> None:
        """Take the subject, its oracle, and the finest arithmetic that it claims."""
        self.subject = subject
        self.oracle = model_oracle(subject)
        self.dtype = max(subject.dtypes, key=lambda each: torch.finfo(each).bits)

    def claims(self, **config: Any) -> bool:
        """Whether the subject claims a configuration with these fields."""
        case = ModelCase(n_head=1, d_head=WIDTH)
        return self.subject.supports(replace(case.config, **config)) is None

    def closed(self, rows: Float64[torch.Tensor, "batch length width"], **config: Any) -> Probe:
        """A model whose embeddings put `rows` into the stream and whose blocks add nothing."""
        batch, length, width = rows.shape
        case = ModelCase(
            n_head=1, d_head=width, dtype=self.dtype, length=length, n_positions=length + 2
        )
        ids = torch.arange(batch * length).view(batch, length)
        return probe(rows.flatten(0, 1), case, input_ids=ids, **config)

    def reading(self, shown: Probe) -> torch.Tensor | None:
        """What the identity in the head shows of a model; nothing where it gives no sound logits.

        Raises:
            NotClaimed: where the subject does not claim the configuration.
        """
        try:
            return shown.read(self.subject)
        except (Raised, Violation):
            return None

    def answers(self, shown: Probe) -> bool:
        """Whether the subject gives sound logits."""
        try:
            return self.reading(shown) is not None
        except NotClaimed:
            return False

    def same(self, one: Probe, two: Probe, *, tokens: int | None = None) -> bool:
        """Whether the subject answers alike on two models that carry the same stream.

        Args:
            one: a model that is shown some tokens.
            two: another, of the same shape.
            tokens: how many tokens of each sequence are compared, from the first; None for all.
        """
        try:
            first, second = self.reading(one), self.reading(two)
        except NotClaimed:
            return True
        if first is None or second is None:
            return first is second
        slack = gate_of(one) + gate_of(two)
        return alike(first[:, :tokens], second[:, :tokens], slack[:, :tokens])

    def adds_as_due(self, shown: Probe) -> bool:
        """Whether a model's blocks make of its embeddings the stream that the oracle makes."""
        stream = self.stream(shown)
        fields = {
            name: getattr(shown.config, name)
            for name in ("n_layer", "n_head", "layer_norm_epsilon", "activation_function")
        }
        return self.same(shown, self.closed(stream, **fields, n_inner=shown.config.n_inner))

    def stream(self, shown: Probe) -> Float64[torch.Tensor, "batch length width"]:
        """What enters the final LayerNorm according to the oracle.

        The last hidden state comes after that, so a closed block is put behind the others.
        """
        key = (self.oracle.name, _digest(shown))
        if key in _STREAMS:
            return _STREAMS[key]
        config = replace(shown.config, n_layer=shown.config.n_layer + 1)
        spare = probe(torch.zeros(1, config.n_embd).double(), ModelCase(), **_sizes(config))
        model = self.oracle.build(config, spare.weights | doubled(shown.weights))
        with torch.no_grad():
            _, states = model(shown.input_ids, output_hidden_states=True)
        _remember(_STREAMS, key, states[shown.config.n_layer])
        return _STREAMS[key]

    def expected(self, shown: Probe) -> Float64[torch.Tensor, "batch length width"]:
        """What the oracle reads of the same model."""
        exact = replace(shown, weights=doubled(shown.weights))
        model = build(self.oracle, exact.config, exact.weights)
        return ask(model, exact.input_ids, exact.weights)[..., -exact.config.n_embd :]

    def is_right(self, shown: Probe) -> bool:
        """Whether the reading is the oracle's: everything from the embeddings to the head."""
        try:
            got = self.reading(shown)
        except NotClaimed:
            return True
        return got is not None and alike(got, self.expected(shown), gate_of(shown))


def opened(shown: Probe, layer: int, **weights: torch.Tensor) -> Probe:
    """The same model with other weights in one block: `attn__c_proj__bias`."""
    changed = dict(shown.weights)
    for key, each in weights.items():
        name = f"transformer.h.{layer}.{key.replace('__', '.')}"
        changed[name] = each.to(changed[name])
    return replace(shown, weights=changed)


def _sizes(config: GPT2Config) -> dict[str, Any]:
    return {
        name: getattr(config, name)
        for name in ("vocab_size", "n_positions", "n_layer", "n_inner", "tie_word_embeddings")
    }


def gate_of(shown: Probe) -> torch.Tensor:
    """How far a right reading may be from the oracle's.

    Blocks that add nothing are left out: a product with zero is zero, whatever was rounded before.
    """
    key = _digest(shown)
    if key not in _GATES:
        config, weights = _open_blocks(shown)
        allowed = Allowed(config, weights, shown.input_ids)
        _remember(_GATES, key, allowed.gate(lambda passed: passed.logits))
    return _GATES[key][..., -shown.config.n_embd :]


# Every subject meets the same models.
_STREAMS: dict[tuple[str, bytes], torch.Tensor] = {}
_GATES: dict[bytes, torch.Tensor] = {}
_MOST = 1024


def _remember(kept: dict[Key, torch.Tensor], key: Key, each: torch.Tensor) -> None:
    if len(kept) >= _MOST:
        kept.clear()
    kept[key] = each


def _digest(shown: Probe) -> bytes:
    told = hashlib.blake2b(repr((shown.config, shown.input_ids.shape)).encode(), digest_size=16)
    for each in (shown.input_ids, *shown.weights.values()):
        told.update(each.numpy().tobytes())
    return told.digest()


def _open_blocks(shown: Probe) -> tuple[GPT2Config, dict[str, torch.Tensor]]:
    """The same model without the blocks whose branches are zero, as far as numbers go."""
    config = shown.config
    names = [f"{name}.c_proj.{part}" for name in ("attn", "mlp") for part in ("weight", "bias")]
    kept = [
        layer
        for layer in range(config.n_layer)
        if any(shown.weights[f"transformer.h.{layer}.{name}"].any() for name in names)
    ]
    if config.scale_attn_by_inverse_layer_idx and kept:
        return config, shown.weights
    weights = {name: each for name, each in shown.weights.items() if ".h." not in name}
    for place, layer in enumerate(kept):
        own = f"transformer.h.{layer}."
        weights |= {
            name.replace(own, f"transformer.h.{place}."): each
            for name, each in shown.weights.items()
            if name.startswith(own)
        }
    return replace(config, n_layer=len(kept)), weights

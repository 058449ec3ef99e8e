"""A testbed that isolates one stage of a broken GPT-2 by comparing two models of the subject.

A black box returns only logits, and its final LayerNorm or head may be wrong too. So a subject is
compared with itself. In the first model, the stage under test adds to the residual stream. In the
second, no branch adds anything, and the embeddings are the stream that the oracle computes for the
first model. If the stage is right, both models have the same stream in all later stages, and give
the same logits.
"""

import hashlib
from dataclasses import replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float64

from attnspec.conformance.comparison.close import agree_but_for_rounding
from attnspec.conformance.comparison.violation import NotClaimed, Raised, Violation
from attnspec.conformance.models.case import ModelCase, normal
from attnspec.conformance.models.oracle import Allowed, in_float64, model_oracle
from attnspec.conformance.models.readout import Readout, make_readout
from attnspec.conformance.models.subject import build, logits_of
from attnspec.spec import GPT2Config, ModelImplementation

Key = TypeVar("Key")

WIDTH = 6
"""Number of channels of the stream, divisible by one, two and three heads."""


def coarse(purpose: str, *shape: int) -> Float64[torch.Tensor, "..."]:
    """Draw normal numbers rounded to steps of 1/256; sums and small multiples are exact."""
    return (normal(5, f"stage/{purpose}", *shape) * 256).round() / 256


ZERO, EYE = torch.zeros(WIDTH).double(), torch.eye(WIDTH).double()
ROW = coarse("row", WIDTH)
"""A row that a branch adds to the stream, or that a LayerNorm returns for every input."""

EPSILONS = (1e-5, 1e-6, 1e-12)
"""Epsilons of released models, for a subject that refuses what an experiment prefers."""


SWITCHES = (
    *("layer_norm_epsilon", "activation_function", "n_inner", "scale_attn_weights"),
    *("scale_attn_by_inverse_layer_idx", "tie_word_embeddings"),
)
"""The fields of a configuration in which few released models differ."""


class Testbed:
    """A subject with its oracle, and the comparisons between models that it builds."""

    def __init__(self, subject: ModelImplementation) -> None:
        """Store the subject, its oracle, and the finest dtype that it claims.

        `diverged` is the configuration of the first comparison that failed since it was reset,
        `refused` the reasons for which models were refused, in their order.
        """
        self.subject = subject
        self.oracle = model_oracle(subject)
        self.dtype = max(subject.dtypes, key=lambda dtype: torch.finfo(dtype).bits)
        self.diverged: GPT2Config | None = None
        self.refused: dict[str, None] = {}

    def claims(self, **config: Any) -> bool:
        """Return whether the subject claims a configuration with these fields."""
        case = ModelCase(n_head=1, d_head=WIDTH)
        reason = self.subject.supports(replace(case.config, **config))
        if reason is not None:
            self.refused[reason] = None
        return reason is None

    def claimed_epsilons(self, *preferred: float) -> tuple[float, ...]:
        """Return those of some epsilons that the subject claims, or the first other one."""
        claimed = [each for each in preferred if self.claims(layer_norm_epsilon=each)]
        others = (each for each in EPSILONS if self.claims(layer_norm_epsilon=each))
        return tuple(claimed) or (next(others, EPSILONS[0]),)

    @property
    def epsilon(self) -> float:
        """A large epsilon, which keeps bounds narrow, or else one that the subject claims."""
        return self.claimed_epsilons(0.25)[0]

    def closed_readout(
        self, rows: Float64[torch.Tensor, "batch length width"], **config: Any
    ) -> Readout:
        """Return a model whose embeddings are `rows` and whose blocks add nothing to the stream."""
        batch, length, width = rows.shape
        case = ModelCase(
            n_head=1, d_head=width, dtype=self.dtype, length=length, n_positions=length + 2
        )
        ids = torch.arange(batch * length).view(batch, length)
        return make_readout(rows.flatten(0, 1), case, input_ids=ids, **config)

    def reading(self, readout: Readout) -> torch.Tensor | None:
        """Return the input of a model's head, or None if the model gives no valid logits.

        The last rows of the head are the identity, so the last logits are its input.

        Raises:
            NotClaimed: if the subject does not claim the configuration.
        """
        try:
            return readout.read(self.subject)
        except (Raised, Violation):
            return None

    def gives_logits(self, readout: Readout) -> bool:
        """Return whether the subject gives valid logits."""
        try:
            return self.reading(readout) is not None
        except NotClaimed:
            return False

    def same_readings(
        self,
        one: Readout,
        two: Readout,
        *,
        tokens: int | None = None,
        sequences: int | None = None,
    ) -> bool:
        """Return whether the subject's readings of two models with the same stream agree.

        Args:
            one: a model with its tokens.
            two: another, of the same shape.
            tokens: number of tokens of each sequence to compare, from the first; None for all.
            sequences: number of sequences to compare, from the first; None for all.

        Returns:
            True also if the subject does not claim the configuration, which `refused` then lists,
            or gives valid logits for neither model.
        """
        try:
            first, second = self.reading(one), self.reading(two)
        except NotClaimed as refusal:
            self.refused[str(refusal)] = None
            return True
        if first is None or second is None:
            return first is second
        tolerance = reading_bound(one) + reading_bound(two)
        return agree_but_for_rounding(
            first[:sequences, :tokens],
            second[:sequences, :tokens],
            tolerance[:sequences, :tokens].amax(),
        )

    def makes_expected_stream(self, readout: Readout) -> bool:
        """Return whether the blocks of a model turn its embeddings into the oracle's stream."""
        stream = self.expected_stream(readout)
        fields = {
            name: getattr(readout.config, name)
            for name in ("n_layer", "n_head", "layer_norm_epsilon", "activation_function")
        }
        is_right = self.same_readings(
            readout, self.closed_readout(stream, **fields, n_inner=readout.config.n_inner)
        )
        return self._noted(readout, is_right)

    def expected_stream(self, readout: Readout) -> Float64[torch.Tensor, "batch length width"]:
        """Return the oracle's input of the final LayerNorm.

        The last hidden state is its output. So a closed block is appended, whose input is the
        state before.
        """
        key = (self.oracle.name, _digest(readout))
        if key in _STREAMS:
            return _STREAMS[key]
        config = replace(readout.config, n_layer=readout.config.n_layer + 1)
        closed = make_readout(torch.zeros(1, config.n_embd).double(), ModelCase(), **_sizes(config))
        model = self.oracle.build(config, closed.weights | in_float64(readout.weights))
        with torch.no_grad():
            _, states = model(readout.input_ids, output_hidden_states=True)
        _store(_STREAMS, key, states[readout.config.n_layer])
        return _STREAMS[key]

    def expected_reading(self, readout: Readout) -> Float64[torch.Tensor, "batch length width"]:
        """Return the oracle's reading of the same model."""
        exact = replace(readout, weights=in_float64(readout.weights))
        model = build(self.oracle, exact.config, exact.weights)
        return logits_of(model, exact.input_ids, exact.weights)[..., -exact.config.n_embd :]

    def is_right(self, readout: Readout) -> bool:
        """Return whether the reading agrees with the oracle's, from the embeddings to the head."""
        try:
            reading = self.reading(readout)
        except NotClaimed as refusal:
            self.refused[str(refusal)] = None
            return True
        if reading is None:
            return self._noted(readout, False)
        expected = self.expected_reading(readout)
        is_right = agree_but_for_rounding(reading, expected, reading_bound(readout).amax())
        return self._noted(readout, is_right)

    def _noted(self, readout: Readout, is_right: bool) -> bool:
        """Return the result of a comparison; store the configuration of the first failure."""
        if not is_right and self.diverged is None:
            self.diverged = readout.config
        return is_right

    def configuration(self) -> str:
        """Return the configuration that diverged: its sizes, and what differs from GPT-2's."""
        if self.diverged is None:
            return ""
        sizes = [f"{name}={getattr(self.diverged, name)}" for name in ("n_layer", "n_head")]
        usual = GPT2Config()
        values = ((name, getattr(self.diverged, name)) for name in SWITCHES)
        switches = [f"{name}={value}" for name, value in values if value != getattr(usual, name)]
        return " ".join([*sizes, f"n_embd={self.diverged.n_embd}", *switches])


def opened_readout(readout: Readout, layer: int, **weights: torch.Tensor) -> Readout:
    """Return the same model with other parameters in one block: `attn__c_proj__bias`."""
    changed = dict(readout.weights)
    for key, tensor in weights.items():
        name = f"transformer.h.{layer}.{key.replace('__', '.')}"
        changed[name] = tensor.to(changed[name])
    return replace(readout, weights=changed)


def _sizes(config: GPT2Config) -> dict[str, Any]:
    return {
        name: getattr(config, name)
        for name in ("vocab_size", "n_positions", "n_layer", "n_inner", "tie_word_embeddings")
    }


def reading_bound(readout: Readout) -> torch.Tensor:
    """Return the error bound of each number of a reading.

    It leaves out blocks that add nothing, since a product with zero is exactly zero.
    """
    key = _digest(readout)
    if key not in _TOLERANCES:
        config, weights = _open_blocks(readout)
        allowed = Allowed(config, weights, readout.input_ids)
        _store(_TOLERANCES, key, allowed.tolerance(lambda passed: passed.logits))
    return _TOLERANCES[key][..., -readout.config.n_embd :]


# All subjects build the same models, so these results are cached.
_STREAMS: dict[tuple[str, bytes], torch.Tensor] = {}
_TOLERANCES: dict[bytes, torch.Tensor] = {}
_CACHE_SIZE = 1024


def _store(cache: dict[Key, torch.Tensor], key: Key, tensor: torch.Tensor) -> None:
    if len(cache) >= _CACHE_SIZE:
        cache.clear()
    cache[key] = tensor


def _digest(readout: Readout) -> bytes:
    digest = hashlib.blake2b(
        repr((readout.config, readout.input_ids.shape)).encode(), digest_size=16
    )
    for tensor in (readout.input_ids, *readout.weights.values()):
        digest.update(tensor.numpy().tobytes())
    return digest.digest()


def _open_blocks(readout: Readout) -> tuple[GPT2Config, dict[str, torch.Tensor]]:
    """Return the configuration and parameters without blocks whose branches are zero.

    If the scale depends on the layer's number, no block is left out, unless all are.
    """
    config = readout.config
    names = [f"{name}.c_proj.{part}" for name in ("attn", "mlp") for part in ("weight", "bias")]
    layers = [
        layer
        for layer in range(config.n_layer)
        if any(readout.weights[f"transformer.h.{layer}.{name}"].any() for name in names)
    ]
    if config.scale_attn_by_inverse_layer_idx and layers:
        return config, readout.weights
    weights = {name: tensor for name, tensor in readout.weights.items() if ".h." not in name}
    for place, layer in enumerate(layers):
        own = f"transformer.h.{layer}."
        weights |= {
            name.replace(own, f"transformer.h.{place}."): tensor
            for name, tensor in readout.weights.items()
            if name.startswith(own)
        }
    return replace(config, n_layer=len(layers)), weights

"""The stages of a GPT-2 that can diverge, with their names in reports."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """A stage of the forward pass, in its order.

    A LayerNorm is blamed for a wrong formula, wrong model parameters, a wrong input, and a change
    of the stream itself.
    """

    EMBEDDING = "embeddings"
    TOKENS = "token embedding"
    POSITIONS = "position embedding"
    FIRST_NORM = "first LayerNorm"
    PROJECTIONS = "attention: linear maps"
    HEADS = "attention: split into queries, keys, values and heads"
    MASK = "attention: mask"
    SCALE = "attention: scale of the scores"
    BATCH = "attention: sequences of a batch meet"
    FIRST_RESIDUAL = "residual around attention"
    SECOND_NORM = "second LayerNorm"
    MLP_MAPS = "MLP: linear maps"
    ACTIVATION = "MLP: activation"
    SECOND_RESIDUAL = "residual around the MLP"
    BLOCK = "the block as a whole"
    ORDER = "order of the blocks"
    FINAL_NORM = "final LayerNorm"
    HEAD = "head"
    STATES = "hidden states"


_NORMS = frozenset({"LNM-1", "LNM-2", "LNM-3", "LNM-4", "LNM-5", "LNM-6"})

CLAUSES = {
    Stage.EMBEDDING: frozenset({"EMB-1", "EMB-2"}),
    Stage.TOKENS: frozenset({"EMB-1", "EMB-2"}),
    Stage.POSITIONS: frozenset({"EMB-2"}),
    Stage.FIRST_NORM: _NORMS | {"GPT-4"},
    Stage.PROJECTIONS: frozenset({"GPT-1"}),
    Stage.HEADS: frozenset({"GPT-2"}),
    Stage.MASK: frozenset({"GPT-18"}),
    Stage.SCALE: frozenset({"GPT-6", "GPT-7"}),
    Stage.BATCH: frozenset({"GPT-19"}),
    Stage.FIRST_RESIDUAL: frozenset({"GPT-3"}),
    Stage.SECOND_NORM: _NORMS | {"GPT-4", "GPT-5"},
    Stage.MLP_MAPS: frozenset({"GPT-1"}),
    Stage.ACTIVATION: frozenset({"ACT-1", "ACT-2", "ACT-3", "ACT-4", "ACT-5"}),
    Stage.SECOND_RESIDUAL: frozenset({"GPT-3"}),
    Stage.BLOCK: frozenset({"GPT-1", "GPT-2", "GPT-3", "GPT-4", "GPT-5"}),
    Stage.ORDER: frozenset({"GPT-3", "GPT-4", "GPT-5"}),
    Stage.FINAL_NORM: _NORMS | {"GPT-8"},
    Stage.HEAD: frozenset({"GPT-9", "GPT-10"}),
    Stage.STATES: frozenset({"GPT-12"}),
}
"""The clauses that a model breaks if the stage is its only mistake, beside `WHOLE_MODEL`."""

WHOLE_MODEL = frozenset({"GPT-11", "GPT-13"})
"""The clauses about the whole model, which any wrong stage breaks."""

COMPARED_WITH_ITSELF = frozenset(
    {
        *("EMB-3", "EMB-4", "GPT-6", "GPT-7", "GPT-15", "GPT-16", "GPT-17", "GPT-18", "GPT-19"),
        *("GPT-20", "GPT-22", "GPT-23", "GPT-24", "GPT-25", "GPT-26", "GPT-27", "GEN-11"),
    }
)
"""The clauses whose laws compare a model with itself, so that a wrong stage does not matter."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first stage that diverges.

    Attributes:
        stage: the stage.
        layer: the block, counted from 0; `None` outside of blocks.
        experiment: the experiment that showed it.
    """

    stage: Stage
    layer: int | None = None
    experiment: str

    def decides(self, clauses: Iterable[str]) -> bool:
        """Return whether a broken law of some clauses says more than that this stage is wrong."""
        return not (CLAUSES[self.stage] | WHOLE_MODEL | COMPARED_WITH_ITSELF).isdisjoint(clauses)

    @property
    def place(self) -> str:
        """Return the stage with its block: "block 0, attention: mask"."""
        return str(self.stage) if self.layer is None else f"block {self.layer}, {self.stage}"

    def __str__(self) -> str:
        """Return the sentence of a report."""
        return f"first stage that diverges: {self.place} (experiment: {self.experiment})"

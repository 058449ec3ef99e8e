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


NORMS = frozenset({"LNM-1", "LNM-2", "LNM-3", "LNM-4", "LNM-5", "LNM-6"})
"""The clauses about the formula of LayerNorm."""

CLAUSES = {
    Stage.EMBEDDING: frozenset({"EMB-1", "EMB-2"}),
    Stage.TOKENS: frozenset({"EMB-1", "EMB-2"}),
    Stage.POSITIONS: frozenset({"EMB-2"}),
    Stage.FIRST_NORM: NORMS | {"GPT-4"},
    Stage.PROJECTIONS: frozenset({"GPT-1"}),
    Stage.HEADS: frozenset({"GPT-2"}),
    Stage.MASK: frozenset({"GPT-18"}),
    Stage.SCALE: frozenset({"GPT-6", "GPT-7"}),
    Stage.BATCH: frozenset({"GPT-19"}),
    Stage.FIRST_RESIDUAL: frozenset({"GPT-3"}),
    Stage.SECOND_NORM: NORMS | {"GPT-4", "GPT-5"},
    Stage.MLP_MAPS: frozenset({"GPT-1"}),
    Stage.ACTIVATION: frozenset({"ACT-1", "ACT-2", "ACT-3", "ACT-4", "ACT-5"}),
    Stage.SECOND_RESIDUAL: frozenset({"GPT-3"}),
    Stage.BLOCK: frozenset({"GPT-1", "GPT-2", "GPT-3", "GPT-4", "GPT-5"}),
    Stage.ORDER: frozenset({"GPT-3", "GPT-4", "GPT-5"}),
    # the formula is that of the first LayerNorm, which is right
    Stage.FINAL_NORM: frozenset({"GPT-8"}),
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

READ_THROUGH = {
    Stage.HEADS: frozenset({"GPT-6", "GPT-7"}),
    Stage.MASK: frozenset({"GPT-15", "GPT-16", "GPT-17", "GPT-22", "GPT-23", "GPT-26", "GEN-11"}),
    Stage.BATCH: frozenset({"GPT-15", "GPT-17", "GPT-22", "GPT-26"}),
}
"""Of `COMPARED_WITH_ITSELF`, the clauses whose laws read the model through a stage."""

INDEPENDENCE = frozenset(
    {
        *("GPT-15", "GPT-16", "GPT-17", "GPT-18", "GPT-19", "GPT-22", "GPT-23", "GPT-26"),
        "GEN-11",
    }
)
"""Of `COMPARED_WITH_ITSELF`, the clauses that any stage breaks in which tokens or rows meet."""


@dataclass(frozen=True, kw_only=True)
class Divergence:
    """The first stage that diverges.

    Attributes:
        stage: the stage.
        layer: the block, counted from 0; `None` outside of blocks.
        experiment: the experiment that showed it.
        configuration: the configuration under which it diverged, such as "n_layer=1 n_head=2".
        clauses: the clauses that the experiment shows to be broken; `None` for all of the stage.
        mixes_rows: whether tokens or sequences meet in the stage, which breaks `INDEPENDENCE`.
        refused: the reasons for which the model refused models of earlier experiments.
    """

    stage: Stage
    layer: int | None = None
    experiment: str
    configuration: str = ""
    clauses: frozenset[str] | None = None
    mixes_rows: bool = False
    refused: tuple[str, ...] = ()

    def decides(self, clauses: Iterable[str]) -> bool:
        """Return whether a broken law of some clauses says more than that this stage is wrong."""
        broken = CLAUSES[self.stage] if self.clauses is None else self.clauses
        unaffected = COMPARED_WITH_ITSELF - READ_THROUGH.get(self.stage, frozenset())
        if self.mixes_rows:
            unaffected -= INDEPENDENCE
        return not (broken | WHOLE_MODEL | unaffected).isdisjoint(clauses)

    @property
    def place(self) -> str:
        """Return the stage with its block: "block 0, attention: mask"."""
        return str(self.stage) if self.layer is None else f"block {self.layer}, {self.stage}"

    def __str__(self) -> str:
        """Return the sentence of a report."""
        under = f"; configuration: {self.configuration}" if self.configuration else ""
        sentence = f"first stage that diverges: {self.place} (experiment: {self.experiment}{under})"
        if self.refused:
            sentence += "\nearlier stages were not compared where the model refuses: " + "; ".join(
                self.refused
            )
        return sentence

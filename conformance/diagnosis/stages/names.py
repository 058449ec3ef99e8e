"""The stages of a GPT-2 that can diverge, with their names in reports."""

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

    @property
    def place(self) -> str:
        """Return the stage with its block: "block 0, attention: mask"."""
        return str(self.stage) if self.layer is None else f"block {self.layer}, {self.stage}"

    def __str__(self) -> str:
        """Return the sentence of a report."""
        return f"first stage that diverges: {self.place} (experiment: {self.experiment})"

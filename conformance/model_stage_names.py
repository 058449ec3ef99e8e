"""The stages of a GPT-2 that can diverge, by the names that a report uses."""

from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """A stage, in the order of the forward pass.

    A LayerNorm answers for its formula, its weights, what it reads, and that it leaves the stream
    alone.
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
class Finding:
    """The first stage that diverges.

    Attributes:
        stage: which.
        layer: the block, counted from 0; `None` outside of blocks.
        experiment: what showed it.
    """

    stage: Stage
    layer: int | None = None
    experiment: str

    @property
    def place(self) -> str:
        """The stage with its block: "block 0, attention: mask"."""
        return str(self.stage) if self.layer is None else f"block {self.layer}, {self.stage}"

    def __str__(self) -> str:
        """What a report says."""
        return f"first stage that diverges: {self.place} (experiment: {self.experiment})"

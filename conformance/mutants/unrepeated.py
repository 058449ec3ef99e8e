"""Public reports that no mutant repeats, each with the reason."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class UnrepeatedReport:
    """A public report of a wrong result that no mutant can repeat.

    Attributes:
        id: of the report, in the form of a mutant's id.
        title: the wrong result in words.
        source: the URL of the report.
        reason: why no mutant repeats it.
    """

    id: str
    title: str
    source: str
    reason: str


NO_CAUSE = "the thread describes the wrong result, not its cause: a mutant would be a guess"

UNREPEATED = (
    UnrepeatedReport(
        id="MSK-25",
        title="bfloat16 under a block-diagonal mask of 600 keys differs from separate segments",
        source="https://github.com/pytorch/pytorch/issues/108503",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="MSK-26",
        title="a simple block-sparse mask gives a wrong output once compiled",
        source="https://github.com/pytorch/pytorch/issues/141126",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="BWD-15",
        title="dQ five times too large at d_head 256, on activations of a real model alone",
        source="https://github.com/NVIDIA/TransformerEngine/issues/3216",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="CAC-14",
        title="several queries behind a cache that is not empty give a wrong output",
        source="https://github.com/sgl-project/sgl-kernel-xpu/issues/196",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="DST-02",
        title="gradients of a sequence that is split over devices are wrong",
        source="https://github.com/NVIDIA/Megatron-LM/issues/1464",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="DTY-06",
        title="bfloat16 is 3 percent off where a mask hides two fifths of 1000 keys",
        source="https://github.com/pytorch/pytorch/issues/163588",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="GQA-12",
        title="keys and values in bfloat16 give a wrong output unless a group has 8 heads",
        source="https://github.com/ikawrakow/ik_llama.cpp/pull/1521",
        reason=NO_CAUSE,
    ),
    UnrepeatedReport(
        id="MDL-07",
        title="the projections back to the stream begin with a deviation that ignores the depth",
        source="https://github.com/huggingface/transformers/issues/47458",
        reason="a model is built from given parameters: initialization is no part of the contract",
    ),
    UnrepeatedReport(
        id="MDL-12",
        title="loss and gradients depend on how many steps a batch is accumulated over",
        source="https://github.com/huggingface/transformers/pull/34191",
        reason="a model returns logits: how training averages the loss is no part of the contract",
    ),
)
"""None of them is missing for want of a law: there is no implementation to test."""

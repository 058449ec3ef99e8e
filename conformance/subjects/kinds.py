"""The kinds of subjects that laws judge."""

from enum import StrEnum

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.operators.subjects import SUBJECTS
from attnspec.spec import ModelImplementation, SamplerImplementation, TokenizerImplementation


class SubjectKind(StrEnum):
    """The kind of subject that a law judges."""

    ATTENTION = "attention"
    MODEL = "model"
    TOKENIZER = "tokenizer"
    SAMPLER = "sampler"
    LAYER_NORM = "layer_norm"
    GELU = "gelu"
    RMS_NORM = "rms_norm"
    ROTARY = "rotary"
    GATED_MLP = "gated_mlp"
    ROUTER = "router"
    EXPERTS = "experts"
    ONLINE_SOFTMAX = "online_softmax"
    SOFTMAX_MERGE = "softmax_merge"
    ADDITIVE_ATTENTION = "additive_attention"
    BERT = "bert"
    ENCODER_DECODER = "encoder_decoder"
    PACKED = "packed"
    PAGED = "paged"


SUBJECT_KINDS: dict[type, SubjectKind] = {
    Subject: SubjectKind.ATTENTION,
    ModelImplementation: SubjectKind.MODEL,
    TokenizerImplementation: SubjectKind.TOKENIZER,
    SamplerImplementation: SubjectKind.SAMPLER,
    **{subject: SubjectKind(operator) for operator, subject in SUBJECTS.items()},
}
"""The kind of a subject by the type that a law's `subject` is annotated with."""

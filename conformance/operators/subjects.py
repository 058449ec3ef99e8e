"""The kinds of operators: the declaration and the subject of each."""

from collections.abc import Mapping
from types import MappingProxyType

from attnspec.conformance.operators.additive_attention.subject import AdditiveAttentionSubject
from attnspec.conformance.operators.bert.subject import BertSubject
from attnspec.conformance.operators.encoder_decoder.subject import EncoderDecoderSubject
from attnspec.conformance.operators.experts.router import RouterSubject
from attnspec.conformance.operators.experts.subject import ExpertsSubject
from attnspec.conformance.operators.gated_mlp.subject import GatedMLPSubject
from attnspec.conformance.operators.gelu.subject import GELUSubject
from attnspec.conformance.operators.layer_norm.subject import LayerNormSubject
from attnspec.conformance.operators.online_softmax.subject import (
    OnlineSoftmaxSubject,
    SoftmaxMergeSubject,
)
from attnspec.conformance.operators.packed.subject import PackedSubject
from attnspec.conformance.operators.paged.subject import PagedSubject
from attnspec.conformance.operators.rms_norm.subject import RMSNormSubject
from attnspec.conformance.operators.rotary.subject import RotarySubject
from attnspec.conformance.operators.subject import OperatorSubject
from attnspec.spec.additive_attention import AdditiveAttentionImplementation
from attnspec.spec.encoder import BertImplementation
from attnspec.spec.encoder_decoder import EncoderDecoderImplementation
from attnspec.spec.experts import ExpertsImplementation, RouterImplementation
from attnspec.spec.gated_mlp import GatedMLPImplementation
from attnspec.spec.gelu import GELUImplementation
from attnspec.spec.layer_norm import LayerNormImplementation
from attnspec.spec.online_softmax import (
    OnlineSoftmaxImplementation,
    SoftmaxMergeImplementation,
)
from attnspec.spec.operator import OperatorImplementation
from attnspec.spec.packed import PackedImplementation
from attnspec.spec.paged import PagedImplementation
from attnspec.spec.rms_norm import RMSNormImplementation
from attnspec.spec.rotary import RotaryImplementation

DECLARATIONS: Mapping[str, type[OperatorImplementation]] = MappingProxyType(
    {
        each.operator: each
        for each in (
            LayerNormImplementation,
            GELUImplementation,
            RMSNormImplementation,
            RotaryImplementation,
            GatedMLPImplementation,
            RouterImplementation,
            ExpertsImplementation,
            OnlineSoftmaxImplementation,
            SoftmaxMergeImplementation,
            AdditiveAttentionImplementation,
            BertImplementation,
            EncoderDecoderImplementation,
            PackedImplementation,
            PagedImplementation,
        )
    }
)
"""The type of the declaration of each operator, by its name."""

SUBJECTS: Mapping[str, type[OperatorSubject]] = MappingProxyType(
    {
        "layer_norm": LayerNormSubject,
        "gelu": GELUSubject,
        "rms_norm": RMSNormSubject,
        "rotary": RotarySubject,
        "gated_mlp": GatedMLPSubject,
        "router": RouterSubject,
        "experts": ExpertsSubject,
        "online_softmax": OnlineSoftmaxSubject,
        "softmax_merge": SoftmaxMergeSubject,
        "additive_attention": AdditiveAttentionSubject,
        "bert": BertSubject,
        "encoder_decoder": EncoderDecoderSubject,
        "packed": PackedSubject,
        "paged": PagedSubject,
    }
)
"""The type of the subject of each operator, by its name."""


def declaration_of(operator: str) -> type[OperatorImplementation]:
    """Return the type of the declaration of an operator.

    Raises:
        ValueError: if there is no such operator, naming those that there are.
    """
    if operator not in DECLARATIONS:
        raise ValueError(f"no operator {operator!r}; there are {', '.join(DECLARATIONS)}")
    return DECLARATIONS[operator]


def subject_of_operator(
    implementation: OperatorImplementation, import_code: str = ""
) -> OperatorSubject:
    """Return the subject that the laws of an operator judge."""
    return SUBJECTS[implementation.operator](implementation=implementation, import_code=import_code)

"""A case: one call of an attention implementation, as data."""

import functools
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

import torch


class Feature(StrEnum):
    """A capability beyond plain attention that an implementation can claim."""

    MASK = "mask"
    CAUSAL = "causal"
    GQA = "gqa"
    WINDOW = "window"
    SOFTCAP = "softcap"
    SINKS = "sinks"
    ALIBI = "alibi"
    KEY_LENGTHS = "key_lengths"
    QUERY_OFFSET = "query_offset"
    LSE = "lse"
    DROPOUT = "dropout"
    BACKWARD = "backward"
    VALIDATES = "validates"
    """Invalid arguments raise; unless this is claimed, their result is undefined."""


class MaskKind(StrEnum):
    """The dtype of `attn_mask`."""

    BOOL = "bool"
    """True if a query may read a key."""
    FLOAT = "float"
    """Added to the scaled scores; minus infinity where a query may not read a key."""


class MaskPattern(StrEnum):
    """The keys that a query may read."""

    CAUSAL = "causal"
    """Key *j* from query *i* iff *j ≤ i* (the upper-left triangle under every profile)."""
    PADDING = "padding"
    """The last keys are hidden from every query, a different number in each batch element."""
    LEFT_PADDING = "left_padding"
    """The first keys are hidden."""
    RANDOM = "random"
    """Each pair readable with probability 0.7, and no row empty."""
    EMPTY_ROWS = "empty_rows"
    """As random, and about a third of the rows (always the first) read nothing."""
    DOCUMENTS = "documents"
    """Packed documents: a query reads the keys of its own document."""
    BIAS = "bias"
    """Every key readable; a float mask adds a finite bias."""
    HALF = "half"
    """Half of the keys is hidden: the first from every second batch element, the last from others.

    In long calls these are whole tiles, which a kernel may skip.
    """
    MIDDLE = "middle"
    """The middle third of the keys is hidden: a tile may lie between tiles that are read."""
    ELEMENT = "element"
    """The first batch element reads nothing, and every other one all keys."""
    LARGE_BIAS = "large_bias"
    """Every key readable; a float mask adds numbers of size 100, beyond 88 and below -88."""
    BIASED = "biased"
    """As random; a float mask adds a finite bias at readable keys."""


BIASES = (MaskPattern.BIAS, MaskPattern.LARGE_BIAS, MaskPattern.BIASED)
"""The patterns of masks that add finite numbers."""


class MaskShape(StrEnum):
    """The shape of `attn_mask`, which broadcasts to (batch, heads, queries, keys)."""

    FULL = "batch heads queries keys"
    HEADS = "1 heads queries keys"
    BATCH = "batch 1 queries keys"
    KEYS = "batch 1 1 keys"
    KEYS_OF_HEADS = "batch heads 1 keys"
    QUERIES = "batch 1 queries 1"
    """A query may read all keys or none, as the pattern lets it read any or none."""
    RANK_3 = "heads queries keys"
    RANK_2 = "queries keys"


@dataclass(frozen=True, kw_only=True)
class Mask:
    """A description from which an `attn_mask` is drawn."""

    kind: MaskKind = MaskKind.BOOL
    pattern: MaskPattern = MaskPattern.RANDOM
    shape: MaskShape = MaskShape.RANK_2
    dtype: torch.dtype | None = None
    """The dtype of a float mask; None is the query's dtype."""

    def __post_init__(self) -> None:
        if self.pattern in BIASES and self.kind is not MaskKind.FLOAT:
            raise ValueError(f"a mask of pattern {self.pattern} must be of kind float")
        if self.dtype is not None and self.kind is not MaskKind.FLOAT:
            raise ValueError("a mask with a dtype of its own must be of kind float")


class Layout(StrEnum):
    """The memory layout of a tensor, which must not change a result."""

    CONTIGUOUS = "contiguous"
    TRANSPOSED = "transposed"
    """The last two axes swapped in memory."""
    HEADS_INSIDE = "heads_inside"
    """Stored (batch, length, heads, channels), seen as (batch, heads, length, channels)."""
    SLICED = "sliced"
    """Every second channel of a larger buffer, with a storage offset; the gaps hold NaN."""
    EXPANDED = "expanded"
    """Heads share one block of memory (stride 0), so all heads hold equal values."""
    EXPANDED_BATCH = "expanded_batch"
    """Batch elements share one block of memory, so all of them hold equal values."""
    PACKED = "packed"
    """The middle one of three tensors that are packed for each token, as of one projection."""
    PACKED_HEADS = "packed_heads"
    """Likewise of three that are packed for each head of each token, as in GPT-NeoX and BLOOM."""
    PADDED = "padded"
    """The first rows and channels of a larger buffer, whose other numbers are NaN."""
    PADDED_TO_EIGHT = "padded_to_eight"
    """Likewise of rows that are padded to a multiple of eight numbers, as vector loads need."""
    CACHE = "cache"
    """The first rows of a buffer with room for more, whose other numbers are NaN."""
    CACHE_INSIDE = "cache_inside"
    """Likewise of a buffer (batch, length, heads, channels)."""
    FEWER_HEADS = "fewer_heads"
    """The first heads of a buffer with others, as one of keys and values has, which are NaN."""
    LENGTH_FIRST = "length_first"
    """Stored (length, batch, heads, channels)."""
    ODD_STRIDES = "odd_strides"
    """Contiguous, but dimensions of size one carry a meaningless stride."""
    UNALIGNED = "unaligned"
    """Contiguous, one element after the start of its memory, which a vector load may not read."""


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """The layout of each operand."""

    query: Layout = Layout.CONTIGUOUS
    key: Layout = Layout.CONTIGUOUS
    value: Layout = Layout.CONTIGUOUS
    mask: Layout = Layout.CONTIGUOUS
    sinks: Layout = Layout.CONTIGUOUS
    slopes: Layout = Layout.CONTIGUOUS


class KeyLengths(StrEnum):
    """The number of keys of each batch element, which may be smaller than that of the tensors."""

    RAGGED = "ragged"
    """At least one key each, another number in neighbours, all keys in some element."""
    EMPTY = "empty"
    """Likewise, and the first batch element has no key."""


class CallMode(StrEnum):
    """The state of torch in which a call is made, which must not change a result."""

    PLAIN = "plain"
    """Gradients are enabled, and torch's default dtype is float32."""
    NO_GRAD = "no_grad"
    """Under `torch.no_grad`."""
    INFERENCE = "inference"
    """Under `torch.inference_mode`."""
    DEFAULT_FLOAT64 = "default_float64"
    """torch's default dtype is float64."""
    DEFAULT_FLOAT16 = "default_float16"
    """torch's default dtype is float16."""
    DEFAULT_BFLOAT16 = "default_bfloat16"
    """torch's default dtype is bfloat16."""
    DETERMINISTIC = "deterministic"
    """Under `torch.use_deterministic_algorithms`, which fills new tensors with NaN as well."""
    THREADS = "threads"
    """torch divides work among several threads."""
    LAYERS = "layers"
    """As in a layer of a model: operands are results of other operations, and the next layer is
    called before the backward pass, with gradients and without."""
    OTHER_THREAD = "other_thread"
    """In a thread of its own, and its backward pass in another."""
    TWO_BACKWARDS = "two_backwards"
    """The graph of the call is kept, and another gradient is sent through it before."""
    SERVING = "serving"
    """As in a server: in inference mode, in which the operands were made as well, in a thread of
    its own, among whose own threads torch divides work."""
    TRAINING = "training"
    """As in a trainer of several devices: forward and backward in threads of their own, among whose
    own threads torch divides work, with deterministic algorithms."""


MODES_WITHOUT_GRADIENTS = (CallMode.NO_GRAD, CallMode.INFERENCE, CallMode.SERVING)
"""The modes in which no backward pass is possible."""


class Values(StrEnum):
    """A family of tensor contents; standard normals alone hide a third of the known bugs."""

    NORMAL = "normal"
    PEAKED = "peaked"
    """Scores of standard deviation about 4: a few keys take most of the weight."""
    NEGATIVE = "negative"
    """Every score is far below zero."""
    VERY_NEGATIVE = "very_negative"
    """Every score is below -10 000 from eight channels on: a running maximum may begin there."""
    GROWING = "growing"
    """Scores grow along the keys, so that a running maximum changes in every tile."""
    CLIMBING = "climbing"
    """Scores grow by 160 along the keys, by little in each tile: exp overflows without a shift."""
    OFFSET = "offset"
    """A huge offset common to all scores, which must not change the softmax."""
    ONE_HOT = "one_hot"
    """Values are one-hot rows: the output shows the weights themselves."""
    INTEGERS = "integers"
    """Small integers: products and sums are exact."""
    TIES = "ties"
    """Keys repeat, so that scores tie exactly."""
    CANCELLATION = "cancellation"
    """Values of size 1000 and both signs that nearly cancel."""
    PLATEAU = "plateau"
    """One key weighs as much as all others together, whose scores are equal and far below."""
    POSITIVE = "positive"
    """Values of one sign and size, so that errors of rounding add up instead of cancelling."""
    TINY = "tiny"
    """Values of size 1e-3."""
    DENORMAL = "denormal"
    """Values below the smallest normal number of the dtype."""
    NEEDLES = "needles"
    """Each query has about half of its weight on one key, if it may read it: at random the first
    one, its own, the next one, the last of the tile before, or any."""
    UNEVEN = "uneven"
    """Likewise, with queries 64 times as large and keys as small, or the reverse."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call, small enough to print: sizes, options, layouts, and how to draw the contents.

    `attnspec.conformance.attention.inputs.draw` makes the tensors from it. Sizes are counts.
    """

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    queries: int = 1
    keys: int = 1
    d_head: int = 1
    d_value: int = 1
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    mask: Mask | None = None
    is_causal: bool = False
    scale: float | None = None
    window: tuple[int | None, int | None] | None = None
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    key_lengths: KeyLengths | None = None
    query_offset: bool = False
    """The queries of each batch element begin at a place of their own among its keys."""
    return_lse: bool = False
    dropout_p: float = 0.0
    backward: bool = False
    """Compute the gradients of query, key and value."""
    mask_gradient: bool = False
    """With `backward`: compute the gradient of a float mask as well."""
    values: Values = Values.NORMAL
    layouts: Layouts = field(default_factory=Layouts)
    mode: CallMode = CallMode.PLAIN
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "kv_heads", "queries", "keys", "d_head", "d_value"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.kv_heads == 0 or self.heads % self.kv_heads:
            raise ValueError(f"{self.heads} heads do not share {self.kv_heads} key/value heads")
        is_float = self.mask is not None and self.mask.kind is MaskKind.FLOAT
        if self.mask_gradient and not (self.backward and is_float):
            raise ValueError("mask_gradient needs backward and a float mask")
        if self.backward and self.mode in MODES_WITHOUT_GRADIENTS:
            raise ValueError(f"a backward pass is not possible under {self.mode}")

    @functools.cached_property
    def features(self) -> frozenset[Feature]:
        """The features that an implementation must claim to be tested on this case."""
        used = {
            Feature.MASK: self.mask is not None,
            Feature.CAUSAL: self.is_causal,
            Feature.GQA: self.heads != self.kv_heads,
            Feature.WINDOW: self.window is not None,
            Feature.SOFTCAP: self.softcap is not None,
            Feature.SINKS: self.sinks,
            Feature.ALIBI: self.alibi,
            Feature.KEY_LENGTHS: self.key_lengths is not None,
            Feature.QUERY_OFFSET: self.query_offset,
            Feature.LSE: self.return_lse,
            Feature.DROPOUT: self.dropout_p > 0,
            Feature.BACKWARD: self.backward,
        }
        return frozenset(feature for feature, is_used in used.items() if is_used)

    def but(self, **changes: Any) -> "Case":
        """Return the same case with some fields changed."""
        return replace(self, **changes) if changes else self

    def __str__(self) -> str:
        """Return the sizes, the dtype, and the fields that differ from the smallest case."""
        always = ("batch", "heads", "queries", "keys", "d_head", "d_value", "dtype")
        words = []
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in always or value != getattr(SMALLEST, item.name):
                words.append(f"{item.name}={_words(value)}")
        return " ".join(words)


SMALLEST = Case()


def _words(value: object) -> str:
    """Return the text of a field without quotes, defaults or module names."""
    if isinstance(value, Mask):
        dtype = "" if value.dtype is None else f"/{str(value.dtype).removeprefix('torch.')}"
        return f"{value.kind}{dtype}/{value.pattern}({value.shape})"
    if isinstance(value, Layouts):
        layouts = {item.name: getattr(value, item.name) for item in fields(value)}
        others = [
            f"{name}:{layout}"
            for name, layout in layouts.items()
            if layout is not Layout.CONTIGUOUS
        ]
        return ",".join(others) or "contiguous"
    return str(value).removeprefix("torch.")

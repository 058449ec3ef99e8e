"""Dtypes, masks and small cases from which the laws of several chapters make theirs."""

import torch

from attnspec.spec import Case, Feature, Mask, MaskKind, MaskPattern, MaskShape, Values
from attnspec.spec.case import BIASES

F64, F32, F16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
DTYPES = (F32, F64, F16, BF16)

HIDDEN = Mask(pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
"""A bool mask that hides keys at random."""
HIDING = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.RANDOM, shape=MaskShape.FULL)
"""The same as a float mask."""
BIAS = Mask(kind=MaskKind.FLOAT, pattern=MaskPattern.BIAS, shape=MaskShape.HEADS)
PADDING = Mask(pattern=MaskPattern.PADDING, shape=MaskShape.KEYS)
EMPTY_ROWS = Mask(pattern=MaskPattern.EMPTY_ROWS, shape=MaskShape.FULL)

TINIEST = Case(queries=2, keys=3, d_head=2, d_value=2, dtype=F32)
SMALL = Case(batch=2, heads=3, kv_heads=3, queries=5, keys=7, d_head=8, d_value=8, dtype=F32)
UNEQUAL = SMALL.but(d_value=3)
"""Values with fewer channels than queries and keys."""
GROUPED = Case(batch=2, heads=6, kv_heads=2, queries=5, keys=17, d_head=16, d_value=16, dtype=F32)
TILES = Case(queries=33, keys=65, d_head=64, d_value=64, dtype=F32)
"""One query and one key more than fill a kernel's tiles."""
WITH_LSE = SMALL.but(return_lse=True)

LENGTHS = (1, 2, 3, 5, 8, 16, 17, 33, 64, 65, 129)
"""Numbers of queries and of keys that exploration draws."""
UNBIASED = tuple(pattern for pattern in MaskPattern if pattern not in BIASES)
"""Patterns of masks that hide keys or not, and add nothing else."""
OPTIONS = (Feature.WINDOW, Feature.SOFTCAP, Feature.SINKS, Feature.ALIBI)
"""Options beyond mask, causal flag and scale that change the output."""
FLAT = (Values.NORMAL, Values.TIES, Values.TINY, Values.INTEGERS)
"""Families in which every readable key has a weight that can be seen."""
CLEAN = (Values.NORMAL, Values.PEAKED, Values.TINY, Values.TIES)
"""Families far from the ends of the number range, in which every NaN is a planted one."""

"""An RMSNorm in Triton, one program for each row."""

from attnspec.implementations.triton_rows import DTYPES, few_rows, rms_norm, without_triton
from attnspec.spec.rms_norm import RMSNormImplementation

IMPLEMENTATION = RMSNormImplementation(
    name="triton_rms_norm",
    function=rms_norm,
    dtypes=DTYPES,
    supports=few_rows,
    unavailable=without_triton,
)

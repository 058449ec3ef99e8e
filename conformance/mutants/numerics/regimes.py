"""Planted bugs of NUM-18: attention that is wrong in one class of calls alone."""

from attnspec.conformance.mutants.bases.wrong_at import wrong_at
from attnspec.conformance.mutants.planting import plant_dense

LAW = "every-two-regimes-equal-the-definition"

plant_dense(
    "own-wrong-beyond-32-heads",
    "the output is wrong with more than 32 heads",
    wrong_at(("heads", "33 to 64")),
    killed_by=LAW,
)
plant_dense(
    "own-wrong-backward-tiles",
    "the output is wrong with several tiles and 96 channels, if gradients are required",
    wrong_at(("extent", "several tiles of queries and keys, backward"), ("d_head", "96")),
    killed_by=LAW,
)

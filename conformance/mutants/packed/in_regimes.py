"""Mutants of packed attention that are wrong in one class of calls alone."""

from attnspec.conformance.mutants.bases.packed import packed_wrong_at

packed_wrong_at(
    "own-packed-wrong-at-64-sequences",
    "wrong for 64 sequences and more",
    ("sequences", "64 and more"),
)
packed_wrong_at(
    "own-packed-wrong-at-groups-of-7",
    "wrong for heads in groups of 5 to 7",
    ("group", "5 to 7"),
)
packed_wrong_at(
    "own-packed-wrong-beside-long",
    "wrong in 16 bits beside a sequence that is 64 times as long",
    ("lengths", "one 64 times as long"),
    ("dtype", "bfloat16"),
)

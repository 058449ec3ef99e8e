"""Mutants of paged attention that merge the outputs of parts of the keys wrongly."""

from dataclasses import replace

from attnspec.conformance.mutants.bases.paged import PROFILE, PlainPaged, paged_mistake
from attnspec.conformance.mutants.bases.parts import InParts, Part
from attnspec.spec.packed import Merging, RoundedParts

ROUNDED = "outputs-of-pages-are-rounded-as-often-as-declared"


@paged_mistake(
    "own-paged-running-output",
    "the output is stored in 16 bits after each 16 keys, although no rounding is declared",
    killed_by=ROUNDED,
)
class RunningOutput(InParts, PlainPaged):
    pass


@paged_mistake(
    "own-paged-roundings-understated",
    "the output is stored in 16 bits after each 16 keys, although one rounding is declared",
    killed_by=ROUNDED,
    profile=replace(PROFILE, partial_outputs=RoundedParts(size=16)),
)
class MoreThanDeclared(InParts, PlainPaged):
    pass


@paged_mistake(
    "own-paged-weight-of-last-split",
    "the last of several splits has the weight of the one before it",
    killed_by="decoding-on-unequal-lengths-is-exact",
    profile=replace(PROFILE, partial_outputs=RoundedParts(size=64)),
)
class WeightOfLast(InParts, PlainPaged):
    size = 64
    merging = Merging.TOGETHER

    def merge(self, parts: list[Part]) -> Part:
        out, _ = parts[-1]
        return super().merge([*parts[:-1], (out, parts[-2][1])])

"""The cases that wait for effort standard: a right attention keeps to the laws on them as well."""

import pytest
from trying import said_on

import attnspec.conformance.laws  # noqa: F401  (registers them)
from attnspec.conformance.law import Law, registered
from attnspec.conformance.mutants.dense import Dense, dense
from attnspec.conformance.mutants.tiled import Tiled
from attnspec.conformance.subject import Subject
from attnspec.spec import Implementation

LAWS = [law for law in registered().values() if law.wide]
RIGHT = {"dense": dense("dense", Dense()), "tiled": dense("tiled", Tiled())}


@pytest.mark.parametrize("law", LAWS, ids=[law.name for law in LAWS])
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_right_attention_passes_and_most_of_it_is_evidence(right: Implementation, law: Law) -> None:
    subject = Subject(right)
    asked = [case for case in law.wide if subject.refuses(case) is None]
    assert said_on(law, subject, asked) >= 0.75 * len(asked)

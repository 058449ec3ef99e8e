"""The laws of NUM on calls in which every three classes of sizes meet, judged by a sample."""

from functools import partial

from attnspec.conformance.attention.subject import Subject
from attnspec.conformance.laws.helpers.cases import BF16, F32
from attnspec.conformance.laws.helpers.large_calls import check_call, check_gradients
from attnspec.conformance.laws.helpers.triples import RUNS, cases_of_triples
from attnspec.conformance.laws.law import law
from attnspec.spec import Case, Values

CHUNK = Case(
    batch=2,
    heads=10,
    kv_heads=2,
    queries=130,
    keys=515,
    d_head=80,
    d_value=80,
    dtype=BF16,
    values=Values.NEEDLES,
)
PROMPTS = CHUNK.but(heads=6, queries=321, keys=321, d_head=128, d_value=128, is_causal=True)
TRAINING = PROMPTS.but(queries=257, keys=257, d_head=96, d_value=96, backward=True)
WIDE = TRAINING.but(
    heads=2, kv_heads=1, queries=100, keys=600, d_head=208, d_value=208, is_causal=False, dtype=F32
)


@law(
    "NUM-21",
    pinned=(CHUNK, PROMPTS, CHUNK.but(batch=9, queries=4, keys=1025, dtype=F32)),
    wide=partial(cases_of_triples, backward=False),
    large=partial(cases_of_triples, backward=False, rounds=range(1, RUNS)),
    fresh=True,
)
def law_every_three_sizes_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-21: at any three classes of sizes, output and log-sum-exp are within their bounds."""
    check_call(subject, case)


@law(
    "NUM-21",
    pinned=(TRAINING, WIDE),
    wide=partial(cases_of_triples, backward=True),
    large=partial(cases_of_triples, backward=True, rounds=range(1, RUNS)),
    fresh=True,
)
def law_gradients_at_every_three_sizes_equal_the_definition(subject: Subject, case: Case) -> None:
    """NUM-21: at any three classes of sizes, gradients are within their bounds."""
    check_gradients(subject, case)

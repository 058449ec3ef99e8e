"""Running a task in this process: the law, then the explanation of a failure."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from attnspec.conformance.diagnosis.other_dtypes import passing_dtypes
from attnspec.conformance.diagnosis.other_profiles import holds_under, holds_under_sentence
from attnspec.conformance.diagnosis.torch_products import (
    LINK,
    MendedProducts,
    spoiled_products,
    spoiled_sentence,
)
from attnspec.conformance.diagnosis.trial import deviations
from attnspec.conformance.diagnosis.undeclared_features import with_undeclared_features
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check, check_deviation
from attnspec.conformance.runner.effort import Effort
from attnspec.conformance.runner.smaller import with_smaller_case
from attnspec.conformance.runner.targets import LoadedSubject
from attnspec.conformance.runner.task import Task


def run_in_process(
    task: Task,
    effort: Effort,
    seed: int | None = None,
    on_case: Callable[[Any], None] | None = None,
    on_record: Callable[[Record], None] | None = None,
) -> Record:
    """Try a law on a loaded subject, and explain a failure.

    Args:
        task: with a loaded subject.
        effort: how many cases to try.
        seed: of the cases that differ from run to run.
        on_case: called with each case before it is tried, so that a crash can be traced to it.
        on_record: called with the record before anything that may crash follows: calls that the
            subject does not claim, the comparison with mutants, or the search for a smaller case.

    Raises:
        TypeError: if the subject is planned and not loaded.
    """
    if not isinstance(task.subject, LoadedSubject):
        raise TypeError(f"{task.id}: its subject is not loaded")
    law, subject = task.law, task.subject.subject
    last_case: list[Any] = []

    def remember(case: Any) -> None:
        last_case[:] = [case]
        if on_case is not None:
            on_case(case)

    with restored_state():
        if task.deviation is not None:
            deviation = deviations(law, subject)[task.deviation]
            remember(deviation.example)
            return check_deviation(law, subject, deviation)
        record = check(law, subject, effort, seed, remember)
        if record.outcome is Outcome.NOT_CLAIMED:
            return with_undeclared_features(law, subject, record, on_record)
    if record.outcome not in (Outcome.FAILED, Outcome.ERRORED) or not last_case:
        return record
    if on_record is not None:
        on_record(record)
    case = last_case[-1]
    if record.outcome is Outcome.FAILED:
        with restored_state():
            products = spoiled_products(law, subject, case)
        if products:
            record = _with_torch_bug(record, products)
            if on_record is not None:
                on_record(record)
            # torch ended the law early: a mistake of the subject may show in the cases that follow
            with restored_state(), MendedProducts():
                mended = check(law, subject, effort, record.seed, remember)
            if mended.outcome in (Outcome.FAILED, Outcome.ERRORED):
                record, case = mended, last_case[-1]
                if on_record is not None:
                    on_record(record)
    if record.torch_bug:
        with restored_state():
            record = replace(record, passes_in=passing_dtypes(law, subject, case))
            return with_smaller_case(law, subject, case, record)
    if record.outcome is Outcome.ERRORED:
        with restored_state():
            return with_smaller_case(law, subject, case, record)
    with restored_state():
        profile_answer = holds_under(law, subject, case)
        record = replace(record, passes_in=passing_dtypes(law, subject, case))
    if profile_answer:
        message = f"{record.message}\n\n{holds_under_sentence(profile_answer)}"
        record = replace(record, holds_under=profile_answer, message=message)
    # importing the catalogue takes longer than most laws
    from attnspec.conformance.diagnosis.diagnose import with_diagnosis

    record = with_diagnosis(record, subject, law)
    if record.outcome is Outcome.NOT_DECIDED:
        return record
    if on_record is not None:
        on_record(record)
    with restored_state():
        return with_smaller_case(law, subject, case, record)


def _with_torch_bug(record: Record, products: Sequence[str]) -> Record:
    """Return the record of a law that products of torch alone break."""
    return replace(
        record,
        torch_bug=products[0],
        link=LINK,
        message=f"{record.message}\n\n{spoiled_sentence(products)}",
    )

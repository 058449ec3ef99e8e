"""The law of GPT on configurations: each field is followed, or its other values are refused."""

import torch

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.models.case import ModelCase
from attnspec.conformance.models.fields import NOT_FOLLOWED, RELEASED, unfollowed_fields
from attnspec.spec import GPT2Config, ModelImplementation
from attnspec.spec.contract import refused_dtype


@law("GPT-28", pinned=(RELEASED, RELEASED.but(dtype=torch.float32)))
def law_every_field_of_a_configuration_is_followed_or_refused(
    subject: ModelImplementation, case: ModelCase
) -> None:
    """GPT-28: another value of a field gives other logits, or raises an error that refuses it."""
    reason = refused_dtype(case.dtype, subject.dtypes) or subject.supports(case.config)
    if reason is not None:
        raise NotClaimed(reason)

    def refuses(config: GPT2Config) -> str | None:
        # what a build was found not to follow is not tried by other laws, and told by this one
        why = subject.supports(config)
        return None if why is None or why.startswith(NOT_FOLLOWED) else why

    unfollowed = unfollowed_fields(subject.build, case.dtype, refuses)
    if unfollowed:
        fields = ", ".join(each.field for each in unfollowed)
        problems = "; ".join(each.problem for each in unfollowed)
        lines = "".join(f"\n    {each.line}" for each in unfollowed)
        raise Violation(
            f"the build does not follow {fields}; other laws judge the released values alone. "
            f"Refuse other values at the start of build:{lines}\n{problems}"
        )

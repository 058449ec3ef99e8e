"""Laws of GEN: from logits and settings to probabilities."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.text.distribution import check_distribution
from attnspec.conformance.text.sampler_cases import LogitsCase, logits_cases
from attnspec.spec import SamplerFeature, SamplerImplementation, Sampling
from attnspec.spec.contract import refused_dtype

_COST = 0.25  # some twenty logits take less time than a plain attention call


def _in_both_dtypes(*cases: LogitsCase) -> list[LogitsCase]:
    return [
        replace(case, dtype=dtype) for case in cases for dtype in (torch.float64, torch.float32)
    ]


def _check_distribution_of_case(subject: SamplerImplementation, case: LogitsCase) -> None:
    """Compare the distribution of a case with the rule.

    Raises:
        NotClaimed: if the sampler does not support the dtype or the settings.
    """
    reason = refused_dtype(case.dtype, subject.dtypes) or subject.supports(case.sampling)
    if reason is not None:
        raise NotClaimed(reason)
    probabilities = subject.probabilities(case.tensor, case.sampling)
    check_distribution(probabilities, case.tensor, case.sampling)


@law(
    "GEN-1",
    pinned=_in_both_dtypes(
        LogitsCase(logits=(0.0,)),
        LogitsCase(logits=(0.0, 1.0)),
        LogitsCase(logits=(1.0, 0.0, -2.0), sampling=Sampling(temperature=0.5)),
        LogitsCase(logits=(1.0, 0.0, -2.0), sampling=Sampling(temperature=2.0)),
        LogitsCase(logits=(3.0, -math.inf, 2.5), sampling=Sampling(temperature=0.7)),
        LogitsCase(logits=(1000.0, 999.0, -1000.0)),
        LogitsCase(logits=(-1000.0, -1001.0), sampling=Sampling(temperature=10.0)),
    ),
    explore=logits_cases(temperature=True),
    cost=_COST,
)
def law_temperature_divides_the_logits(subject: SamplerImplementation, case: LogitsCase) -> None:
    """GEN-1: the next token is drawn from the softmax of the logits over the temperature."""
    _check_distribution_of_case(subject, case)


@law(
    "GEN-2",
    pinned=_in_both_dtypes(
        LogitsCase(logits=(0.0, 1.0), sampling=Sampling(top_k=1)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(top_k=2)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(top_k=4)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(top_k=50)),
        LogitsCase(logits=(1.0, 1.0, 1.0, 0.0), sampling=Sampling(top_k=2)),
        LogitsCase(logits=(2.0, -math.inf, 1.0), sampling=Sampling(top_k=3)),
    ),
    explore=logits_cases(top_k=True),
    cost=_COST,
)
def law_top_k_keeps_the_k_largest(subject: SamplerImplementation, case: LogitsCase) -> None:
    """GEN-2: top-k keeps the k largest logits, any of those that tie with the last, no others."""
    _check_distribution_of_case(subject, case)


@law(
    "GEN-3",
    pinned=_in_both_dtypes(
        LogitsCase(logits=(0.0, 1.0), sampling=Sampling(top_p=0.01)),
        LogitsCase(logits=(0.0, 1.0), sampling=Sampling(top_p=0.5)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(top_p=0.7)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(top_p=0.9)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(top_p=1.0)),
        LogitsCase(logits=(0.0,) * 8, sampling=Sampling(top_p=0.4)),
        LogitsCase(logits=(2.0, -math.inf, 2.0, 1.0), sampling=Sampling(top_p=0.6)),
    ),
    explore=logits_cases(top_p=True),
    cost=_COST,
)
def law_top_p_keeps_the_fewest_that_reach_p(
    subject: SamplerImplementation, case: LogitsCase
) -> None:
    """GEN-3: top-p keeps the fewest of the most probable tokens that together reach p."""
    _check_distribution_of_case(subject, case)


@dataclass(frozen=True, kw_only=True)
class BoundaryCase:
    """Equally probable tokens, of which some have exactly the probability `top_p` together.

    Attributes:
        tokens: the number of tokens, a power of two, so that all probabilities are exact.
        kept: the number of tokens that have the probability `top_p` together.
        dtype: the dtype of the logits.
    """

    tokens: int
    kept: int
    dtype: torch.dtype = torch.float64


@law(
    "GEN-3",
    pinned=[
        BoundaryCase(tokens=tokens, kept=kept, dtype=dtype)
        for tokens in (2, 4, 8, 32)
        for kept in (1, 2, 3, 24, 31)
        if kept < tokens
        for dtype in (torch.float64, torch.float32)
    ],
)
def law_top_p_is_reached_by_an_exact_sum(
    subject: SamplerImplementation, case: BoundaryCase
) -> None:
    """GEN-3: tokens whose probabilities add up to exactly p are enough."""
    reason = refused_dtype(case.dtype, subject.dtypes)
    if reason is not None:
        raise NotClaimed(reason)
    logits = torch.zeros(case.tokens, dtype=case.dtype)
    if not (subject.probabilities(logits, Sampling()) == 1 / case.tokens).all():
        raise NotClaimed("the probabilities of equal logits are rounded, and may tip either way")
    probabilities = subject.probabilities(logits, Sampling(top_p=case.kept / case.tokens))
    kept = int((probabilities > 0).sum())
    if kept != case.kept:
        raise Violation(
            f"{case.kept} of {case.tokens} equally probable tokens have top_p = "
            f"{case.kept / case.tokens} together, but {kept} were kept"
        )


@law(
    "GEN-5",
    pinned=_in_both_dtypes(
        # the first of the two tokens that top-k keeps has 0.755; among all four it has 0.553
        LogitsCase(logits=(1.125, 0.0, -0.125, -0.5), sampling=Sampling(top_k=2, top_p=0.7)),
        LogitsCase(logits=(2.0, 1.0, 0.0), sampling=Sampling(temperature=0.5, top_p=0.85)),
        LogitsCase(logits=(2.0, 1.0, 0.0), sampling=Sampling(temperature=2.0, top_p=0.6)),
        LogitsCase(
            logits=(3.0, 2.0, 1.0, 0.0), sampling=Sampling(temperature=1.3, top_k=3, top_p=0.9)
        ),
    ),
    explore=logits_cases(temperature=True, top_k=True, top_p=True),
    cost=_COST,
)
def law_temperature_then_top_k_then_top_p(subject: SamplerImplementation, case: LogitsCase) -> None:
    """GEN-5: the temperature comes first, then top-k, then top-p of what top-k left."""
    _check_distribution_of_case(subject, case)


@law(
    "GEN-13",
    pinned=_in_both_dtypes(
        LogitsCase(logits=(0.0, 1.0), sampling=Sampling(min_p=0.0)),
        LogitsCase(logits=(0.0, 1.0), sampling=Sampling(min_p=0.3)),
        LogitsCase(logits=(0.0, 1.0), sampling=Sampling(min_p=0.5)),
        # shares 1, 0.37, 0.14, 0.05; probabilities 0.64, 0.24, 0.09, 0.03
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(min_p=0.1)),
        LogitsCase(logits=(0.0, 3.0, 1.0, 2.0), sampling=Sampling(min_p=0.3)),
        LogitsCase(logits=(0.0, 3.0, 3.0, 2.875), sampling=Sampling(min_p=1.0)),
        LogitsCase(logits=(2.0, -math.inf, 2.0, 1.0), sampling=Sampling(min_p=0.0)),
        LogitsCase(logits=(-3.0, -4.0, -8.0), sampling=Sampling(min_p=0.2)),
    ),
    explore=logits_cases(min_p=True),
    needs={SamplerFeature.MIN_P},
    cost=_COST,
)
def law_min_p_keeps_the_tokens_of_a_share(subject: SamplerImplementation, case: LogitsCase) -> None:
    """GEN-13: min-p keeps the tokens that have at least a share of the largest probability."""
    _check_distribution_of_case(subject, case)


@law(
    "GEN-14",
    pinned=_in_both_dtypes(
        # the shares are 1 and 0.37 at temperature 1, 1 and 0.14 at 0.5, 1 and 0.61 at 2
        LogitsCase(logits=(1.0, 0.0), sampling=Sampling(temperature=0.5, min_p=0.25)),
        LogitsCase(logits=(1.0, 0.0), sampling=Sampling(temperature=2.0, min_p=0.5)),
        # top-p keeps two of the four; of the two that min-p would leave, it would keep one
        LogitsCase(logits=(1.125, 0.0, -0.125, -0.5), sampling=Sampling(top_p=0.6, min_p=0.31)),
        LogitsCase(logits=(1.125, 0.0, -0.125, -0.5), sampling=Sampling(top_k=3, min_p=0.25)),
        LogitsCase(
            logits=(3.0, 2.0, 1.0, 0.0),
            sampling=Sampling(temperature=1.3, top_k=3, top_p=0.9, min_p=0.3),
        ),
    ),
    explore=logits_cases(temperature=True, top_k=True, top_p=True, min_p=True),
    needs={SamplerFeature.MIN_P},
    cost=_COST,
)
def law_min_p_comes_last(subject: SamplerImplementation, case: LogitsCase) -> None:
    """GEN-14: min-p comes after the temperature, top-k and top-p."""
    _check_distribution_of_case(subject, case)


_OUT_OF_RANGE = (
    *(Sampling(temperature=value) for value in (0.0, -1.0, math.nan)),
    *(Sampling(top_k=value) for value in (0, -1)),
    *(Sampling(top_p=value) for value in (0.0, -0.5, 1.5, math.nan)),
    *(Sampling(min_p=value) for value in (-0.5, 1.5, math.nan)),
)


@law(
    "GEN-6",
    pinned=[LogitsCase(logits=(0.0, 1.0), sampling=sampling) for sampling in _OUT_OF_RANGE],
)
def law_settings_out_of_range_are_refused(subject: SamplerImplementation, case: LogitsCase) -> None:
    """GEN-6: a setting out of range is refused by an error that names it."""
    name = next(
        setting
        for setting in ("temperature", "top_k", "top_p", "min_p")
        if repr(getattr(case.sampling, setting)) != repr(getattr(Sampling(), setting))
    )
    if name == "min_p" and SamplerFeature.MIN_P not in subject.features:
        raise NotClaimed("feature not claimed: min_p")
    calls: dict[str, Callable[[], object]] = {
        "probabilities": lambda: subject.probabilities(case.tensor, case.sampling),
        "generate": lambda: subject.generate(
            lambda ids: case.tensor, [0], max_new_tokens=1, sampling=case.sampling
        ),
    }
    for method, call in calls.items():
        try:
            result = call()
        except ValueError as error:
            if name not in str(error):
                raise Violation(f"{method}: the error does not name {name}: {error}") from error
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            raise Violation(
                f"{method}: {case.sampling} must raise ValueError, got {raised}"
            ) from error
        else:
            raise Violation(f"{method}: {case.sampling} must be refused, got {result}")

"""Laws of GEN: one token after another, until a stop token."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from hypothesis import strategies as st

from attnspec.conformance.comparison.violation import NotClaimed, Violation
from attnspec.conformance.laws.law import law
from attnspec.conformance.text.sampler_cases import ScriptCase, scripts
from attnspec.spec import SamplerImplementation, Sampling


@law(
    "GEN-2",
    pinned=[ScriptCase(), ScriptCase(vocab=9, prompt=(3, 1), max_new_tokens=6, seed=1)],
    explore=scripts(levels=(1000,)),
)
def law_drawing_with_top_k_one_is_greedy(subject: SamplerImplementation, case: ScriptCase) -> None:
    """GEN-2: with top-k of 1 and no ties, generation draws what greedy generation takes."""
    expected = case.greedy()
    for step in range(len(expected)):
        logits = case.next_logits([*case.prompt, *expected[:step]]).tolist()
        if logits.count(max(logits)) > 1:
            raise NotClaimed("two logits tie, and top-k may keep both")
    _check_tokens(case, _generate(subject, replace(case, sampling=Sampling(top_k=1))), expected)


def _numbered_script(step: int) -> ScriptCase:
    """Return a script with so many levels that ties are rare."""
    return ScriptCase(vocab=7, prompt=(step % 7, 2), max_new_tokens=9, levels=1000, seed=step)


@law(
    "GEN-4",
    pinned=[
        ScriptCase(max_new_tokens=1),
        *(_numbered_script(n) for n in range(3)),
        *(
            replace(_numbered_script(n), stop_tokens=(_numbered_script(n).greedy()[n],))
            for n in range(6)
        ),
        *(
            replace(_numbered_script(n), stop_tokens=(_numbered_script(n).greedy()[8],))
            for n in range(3)
        ),
        *(replace(_numbered_script(n), stop_tokens=_numbered_script(n).prompt) for n in range(3)),
        replace(_numbered_script(5), stop_tokens=(1, 3, 6)),
    ],
    explore=scripts(levels=(1000,), stops=True),
)
def law_generation_ends_before_a_stop_token(
    subject: SamplerImplementation, case: ScriptCase
) -> None:
    """GEN-4: generation gives max_new_tokens tokens, or those before the first stop token."""
    _check_tokens(case, _generate(subject, case), case.greedy())


@law(
    "GEN-7",
    pinned=[
        ScriptCase(levels=1),
        ScriptCase(vocab=2, levels=2),
        ScriptCase(vocab=8, levels=2, max_new_tokens=8),
        ScriptCase(vocab=9, levels=3, prompt=(4, 4), max_new_tokens=8, seed=3),
        ScriptCase(vocab=9, max_new_tokens=8, seed=4),
    ],
    explore=scripts(levels=(1, 2, 3, 200)),
)
def law_greedy_takes_the_largest_logit(subject: SamplerImplementation, case: ScriptCase) -> None:
    """GEN-7: greedy generation takes the largest logit, of equal ones that of the lowest id."""
    _check_tokens(case, _generate(subject, case), case.greedy())


@law(
    "GEN-8",
    pinned=[
        ScriptCase(sampling=Sampling()),
        ScriptCase(vocab=9, prompt=(8, 0, 8), max_new_tokens=8, sampling=Sampling(), seed=1),
        ScriptCase(vocab=9, prompt=(8, 0, 8), max_new_tokens=8, seed=2),
    ],
    explore=lambda subject: st.booleans().flatmap(
        lambda drawing: scripts(drawing=drawing)(subject)
    ),
)
def law_each_token_follows_from_all_before_it(
    subject: SamplerImplementation, case: ScriptCase
) -> None:
    """GEN-8: each token is chosen from the logits that follow the prompt and all new tokens."""
    contexts: set[tuple[int, ...]] = set()

    def next_logits(ids: Sequence[int]) -> torch.Tensor:
        contexts.add(tuple(ids))
        return case.next_logits(ids)

    tokens = list(
        subject.generate(
            next_logits,
            list(case.prompt),
            max_new_tokens=case.max_new_tokens,
            sampling=case.sampling,
            seed=case.seed,
        )
    )
    for step, token in enumerate(tokens):
        context = (*case.prompt, *tokens[:step])
        if context not in contexts:
            raise Violation(f"new token {step} was chosen without the logits after {context}")
        if case.sampling is None:
            logits = case.next_logits(context).tolist()
            if logits[token] != max(logits):
                raise Violation(
                    f"new token {step} is {token}, whose logit after {context} is not the largest"
                )


def _generate(subject: SamplerImplementation, case: ScriptCase) -> list[int]:
    if case.sampling is not None:
        reason = subject.supports(case.sampling)
        if reason is not None:
            raise NotClaimed(reason)
    return list(
        subject.generate(
            case.next_logits,
            list(case.prompt),
            max_new_tokens=case.max_new_tokens,
            stop_tokens=frozenset(case.stop_tokens),
            sampling=case.sampling,
            seed=case.seed,
        )
    )


def _check_tokens(case: ScriptCase, tokens: list[int], expected: list[int]) -> None:
    if tokens != expected:
        raise Violation(f"generate must give {expected} after {list(case.prompt)}, got {tokens}")

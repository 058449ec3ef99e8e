"""Mutants of beam search: wrong continuations, scores, ends or checks."""

from dataclasses import replace

import torch

from attnspec.conformance.mutants.bases.beam_search import Beam, BeamSearcher, Search
from attnspec.conformance.mutants.bases.sampler import beam_mistake
from attnspec.spec import Beams, EarlyStopping, Hypothesis, NextLogits


@beam_mistake(
    "own-beams-apart",
    "each hypothesis is continued by its own best token: beams never compete",
    killed_by="beam-search-keeps-the-best-continuations",
)
class Apart(BeamSearcher):
    def continuations(self, search: Search, next_logits: NextLogits) -> list[Beam]:
        candidates = super().continuations(search, next_logits)
        if len(search.opened) == 1:
            return candidates
        best = {tuple(tokens[:-1]): (tokens, total) for tokens, total in reversed(candidates)}
        first = sorted(best.values(), key=lambda each: -each[1])
        return first + [each for each in candidates if each not in first]


@beam_mistake(
    "own-beams-compare-last-token",
    "hypotheses are compared by the probability of their last token alone",
    killed_by="beam-search-keeps-the-best-continuations",
)
class LastToken(BeamSearcher):
    def add(self, total: float, step: float) -> float:
        return step


@beam_mistake(
    "own-beams-wrong-parent",
    "the tokens of a hypothesis stay in their row when it gets another place in the beam",
    killed_by="beam-search-keeps-the-best-continuations",
)
class WrongParent(BeamSearcher):
    def keep(self, search: Search, candidates: list[Beam]) -> None:
        rows = [tokens for tokens, _ in search.opened]
        super().keep(search, candidates)
        if len(rows) == len(search.opened):
            search.opened = [
                ([*row, tokens[-1]], total)
                for row, (tokens, total) in zip(rows, search.opened, strict=True)
            ]


@beam_mistake(
    "own-beams-compare-logits",
    "logits are added, not log-probabilities",
    killed_by="a-score-is-the-sum-of-log-probabilities-over-the-length",
)
class Logits(BeamSearcher):
    def steps(self, logits: torch.Tensor) -> list[float]:
        values: list[float] = logits.double().tolist()
        return values


@beam_mistake(
    "own-beams-too-few",
    "half of the hypotheses are dropped at each step",
    killed_by="beam-search-keeps-the-best-continuations",
)
class TooFew(BeamSearcher):
    def keep(self, search: Search, candidates: list[Beam]) -> None:
        super().keep(search, candidates)
        search.opened = search.opened[: max(1, search.beams.beams // 2)]


@beam_mistake(
    "own-beams-of-the-vocabulary",
    "no more hypotheses stay open than there are tokens in the vocabulary",
    killed_by="a-beam-wide-enough-finds-the-most-probable",
)
class OfTheVocabulary(BeamSearcher):
    def keep(self, search: Search, candidates: list[Beam]) -> None:
        super().keep(search, candidates)
        search.opened = search.opened[: len({tokens[-1] for tokens, _ in candidates})]


@beam_mistake(
    "own-beams-penalty-counts-prompt",
    "the length penalty counts the tokens of the prompt",
    killed_by="a-score-is-the-sum-of-log-probabilities-over-the-length",
    source="https://github.com/huggingface/transformers/pull/27351",
)
class PromptCounted(BeamSearcher):
    def length(self, search: Search, tokens: list[int]) -> int:
        return len(search.prompt) + len(tokens)


@beam_mistake(
    "own-beams-penalty-without-stop",
    "the stop token is not counted by the length penalty",
    killed_by="a-score-is-the-sum-of-log-probabilities-over-the-length",
    source="https://github.com/huggingface/transformers/issues/8722",
)
class StopNotCounted(BeamSearcher):
    def length(self, search: Search, tokens: list[int]) -> int:
        return max(1, len(tokens) - search.ends(tokens))


@beam_mistake(
    "own-beams-penalty-of-wu",
    "the length penalty is that of Wu et al., a power of (5 + length) / 6",
    killed_by="a-score-is-the-sum-of-log-probabilities-over-the-length",
)
class PenaltyOfWu(BeamSearcher):
    def normalized(self, search: Search, total: float, length: int) -> float:
        return float(total / ((5 + length) / 6) ** search.beams.length_penalty)


@beam_mistake(
    "own-beams-penalty-multiplies",
    "the power of the length multiplies the log-probability",
    killed_by="a-score-is-the-sum-of-log-probabilities-over-the-length",
)
class PenaltyMultiplies(BeamSearcher):
    def normalized(self, search: Search, total: float, length: int) -> float:
        return float(total * length**search.beams.length_penalty)


@beam_mistake(
    "own-beams-go-on-after-stop",
    "a hypothesis is continued after its stop token, and the others have less room",
    killed_by="a-stop-token-finishes-a-hypothesis",
    source="https://github.com/facebookresearch/ParlAI/issues/2058",
)
class GoesOn(BeamSearcher):
    def finish(self, search: Search, candidates: list[Beam]) -> None:
        every = [each for each in candidates if search.is_last(each[0])]
        super().finish(search, every)

    def keep(self, search: Search, candidates: list[Beam]) -> None:
        search.opened = candidates[: search.beams.beams]


@beam_mistake(
    "own-beams-shrink",
    "a finished hypothesis leaves its place in the beam empty",
    killed_by="a-stop-token-finishes-a-hypothesis",
)
class Shrinks(BeamSearcher):
    def keep(self, search: Search, candidates: list[Beam]) -> None:
        super().keep(search, candidates[: search.beams.beams])


@beam_mistake(
    "own-beams-finish-improbable",
    "a stop token finishes a hypothesis that is not among the best of its step",
    killed_by="a-stop-token-finishes-a-hypothesis",
)
class FinishesImprobable(BeamSearcher):
    def finish(self, search: Search, candidates: list[Beam]) -> None:
        ending = [each for each in candidates if search.ends(each[0])]
        others = [each for each in candidates if not search.ends(each[0])]
        count = search.beams.beams
        best = [*ending[:count], *others[:count]]
        for tokens, total in best:
            if search.ends(tokens) or search.is_last(tokens):
                score = self.score(search, tokens, total)
                search.finished.append(Hypothesis(tuple(tokens), score))
        search.finished = sorted(search.finished, key=lambda each: -each.score)[:count]


@beam_mistake(
    "own-beams-end-with-the-best",
    "the search ends once the best hypothesis of a step ends in a stop token",
    killed_by="a-beam-search-ends-by-its-rule",
    source="https://github.com/joeynmt/joeynmt/issues/148",
)
class EndsWithTheBest(BeamSearcher):
    def finish(self, search: Search, candidates: list[Beam]) -> None:
        super().finish(search, candidates)
        best = candidates[0][0]
        if search.ends(best) and not search.is_last(best):
            for tokens, total in [each for each in candidates if not search.ends(each[0])]:
                if len(search.finished) < search.beams.beams:
                    score = self.score(search, tokens, total)
                    search.finished.append(Hypothesis(tuple(tokens), score))
            search.max_new_tokens = len(best)


@beam_mistake(
    "own-beams-end-when-full",
    "the search always ends once enough hypotheses are finished",
    killed_by="a-beam-search-ends-by-its-rule",
    source="https://github.com/neulab/xnmt/pull/572",
)
class EndsWhenFull(BeamSearcher):
    def is_hopeless(self, search: Search, tokens: list[int], total: float) -> bool:
        return True


@beam_mistake(
    "own-beams-end-by-present-length",
    "a search that should lose nothing compares scores at the present length",
    killed_by="a-beam-search-ends-by-its-rule",
    source="https://github.com/huggingface/transformers/pull/20901",
)
class PresentLength(BeamSearcher):
    def longest(self, search: Search, tokens: list[int]) -> int:
        return len(tokens)


@beam_mistake(
    "own-beams-early-stopping-ignored",
    "a search runs to the full length, whatever the rule",
    killed_by="a-beam-search-ends-by-its-rule",
)
class RuleIgnored(BeamSearcher):
    def is_full(self, search: Search) -> bool:
        return False


@beam_mistake(
    "own-beam-of-one-loses-nothing",
    "one beam is searched on after its stop token for a better score",
    killed_by="a-beam-of-one-is-greedy",
)
class OneGoesOn(BeamSearcher):
    def longest(self, search: Search, tokens: list[int]) -> int:
        if search.beams.beams == 1 and search.beams.early_stopping is EarlyStopping.HEURISTIC:
            return search.max_new_tokens**2
        return super().longest(search, tokens)


@beam_mistake(
    "own-beam-of-one-is-two",
    "a search has at least two beams",
    killed_by="a-beam-of-one-is-greedy",
)
class AtLeastTwo(BeamSearcher):
    def keep(self, search: Search, candidates: list[Beam]) -> None:
        wider = replace(search.beams, beams=max(2, search.beams.beams))
        others = [each for each in candidates if not search.ends(each[0])]
        search.opened = others[: wider.beams]


@beam_mistake(
    "own-beams-not-checked",
    "settings of a beam search out of range are taken as they come",
    killed_by="settings-of-beam-search-out-of-range-are-refused",
)
class Unchecked(BeamSearcher):
    def check(self, beams: Beams) -> None:
        pass

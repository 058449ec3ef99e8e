"""Judge one step of the exercise, and name the mistake in a learner's words.

A function is called on small examples, whose results are compared with the reference's within the
error bound. Then it takes its place in a correct GPT-2, on which the laws of its clauses are tried.
A function that the learner did not write is judged in the model that `build` returns, if there is
one. A mistake is named by the mutant that makes the same model, else by the first stage that
diverges.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from attnspec.conformance import laws
from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Violation
from attnspec.conformance.diagnosis.diagnose import with_model_diagnosis
from attnspec.conformance.diagnosis.likeness.models import likely_model_mutants
from attnspec.conformance.diagnosis.stages.names import Stage
from attnspec.conformance.diagnosis.stages.search import first_divergence, is_deterministic
from attnspec.conformance.exercise import advice
from attnspec.conformance.exercise.assembled import assemble
from attnspec.conformance.exercise.examples import DTYPE, EXAMPLES, Example
from attnspec.conformance.exercise.learner import Learner
from attnspec.conformance.exercise.steps import BUILD, CACHE, GENERATE, LOAD, Step
from attnspec.conformance.isolation.state import restored_state
from attnspec.conformance.laws.law import Law
from attnspec.conformance.models.case import ModelCase, draw, draw_parameters
from attnspec.conformance.mutants.bases.gpt2 import COMPACT
from attnspec.conformance.report.record import Outcome, Record
from attnspec.conformance.runner.check import check
from attnspec.conformance.runner.declare_model import MODEL_DTYPES, declare_model, why_not
from attnspec.conformance.subjects.kinds import SubjectKind
from attnspec.reference.generation import generate
from attnspec.spec import GPT2Config, ModelFeature, ModelImplementation

NOT_WRITTEN = "not written yet"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found of one step.

    Attributes:
        holds: whether the step is done.
        is_written: whether there is anything to judge.
        sentence: the mistake in a learner's words, or the text that was written.
        details: further lines, each with its heading.
    """

    holds: bool
    is_written: bool = True
    sentence: str = ""
    details: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> "Finding":
        """Parse a line written by `to_json`."""
        entries = json.loads(line)
        return cls(**entries | {"details": tuple(map(tuple, entries["details"]))})


DONE = Finding(holds=True)


def judge(step: Step, learner: Learner) -> Finding:
    """Judge one step of a learner's work."""
    with restored_state(), torch.no_grad():
        function = learner.functions.get(step.function)
        if step.function in (BUILD, CACHE, GENERATE):
            return _LATER[step.function](step, learner)
        if function is not None:
            finding = judge_function(step, learner, function)
            if finding.is_written:
                return finding
        # what is not written as a function of its own may be part of a model
        if BUILD in learner.functions:
            cause = _failure(learner)
            if not cause:
                return judge_in_model(step, learner)
            is_one_class = learner.functions.keys() <= {BUILD, GENERATE}
            if is_one_class and not cause.startswith("NotImplementedError"):
                return _first_call_fails(cause)
        return _not_written(step, learner)


def _not_written(step: Step, learner: Learner) -> Finding:
    near = learner.near.get(step.function, "")
    sentence = "; ".join(learner.problems) or f"{step.function} is {NOT_WRITTEN}{near}."
    return Finding(
        holds=False,
        is_written=bool(learner.problems),
        sentence=sentence,
        details=(("Write", step.signature),),
    )


# FUNCTIONS


def judge_function(step: Step, learner: Learner, function: Callable[..., Any]) -> Finding:
    """Judge a function by examples, then by laws of a model in which it takes its place."""
    if step.function == LOAD and (finding := _judge_names(step, learner, function)) is not None:
        return finding
    wrong = next(
        (
            found
            for example in EXAMPLES.get(step.function, list)()
            if (found := _judge_example(step, learner, function, example)) is not None
        ),
        None,
    )
    if wrong is not None and (not wrong.is_written or wrong.sentence):
        return wrong
    subject = assemble(step.function, function)
    subject = replace(subject, dtypes=_dtypes(subject.build))
    details = () if wrong is None else wrong.details
    if subject.dtypes:
        record = _broken(step, subject) if wrong is None else None
        if wrong is None and record is None:
            return DONE
        sentence = _sentence(subject)
        if not sentence and step.function == "transformer" and _runs_backwards(function):
            sentence = advice.STAGES[Stage.ORDER]
        return _finding(step, sentence, record, details)
    if wrong is not None and step.function == "linear":
        square = assemble("square linear", function)
        square = replace(square, dtypes=_dtypes(square.build))
        if square.dtypes and (sentence := _sentence(square)):
            return _finding(step, sentence, None, details)
    cause = why_not(subject.build, torch.float32)
    if cause.startswith("NotImplementedError"):
        return replace(_not_written(step, learner), is_written=False)
    return Finding(
        holds=False,
        sentence=advice.about_exception(cause) or f"It raises {cause}",
        details=(*details, ("Raised", cause)),
    )


def _judge_names(step: Step, learner: Learner, function: Callable[..., Any]) -> Finding | None:
    """Let a function take the parameters of a small checkpoint, all of which fit.

    Returns:
        None if it returns all of them.
    """
    config = GPT2Config(vocab_size=7, n_positions=5, n_embd=6, n_layer=2, n_head=2, n_inner=10)
    given = draw_parameters(config, seed=0, spread=0.3, dtype=DTYPE)
    sizes = ("vocab_size", "n_positions", "n_embd", "n_layer", "d_inner")
    shown = ", ".join(f"{name}={getattr(config, name)}" for name in sizes)
    call = ("Call", f"{step.function}: {shown}")
    try:
        got = function(config, dict(given))
    except NotImplementedError:
        return _not_written(step, replace(learner, problems=()))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        fitting = next((name for name in sorted(given, key=len)[::-1] if name in text), "")
        place = learner.place(error)
        return Finding(
            holds=False,
            sentence=f"It refuses {fitting}, which fits: its shape is "
            f"{tuple(given[fitting].shape)}.{advice.INNER if '.mlp.' in fitting else ''}"
            if fitting
            else advice.about_exception(text) or f"It raises {text}.",
            details=(call, ("Raised", text), *((("Where", place),) if place else ())),
        )
    if got is None:
        return Finding(holds=False, sentence="It returns nothing: add a return.", details=(call,))
    if not isinstance(got, Mapping):
        sentence = f"It returns a {type(got).__name__}: return a dictionary of tensors by name."
        return Finding(holds=False, sentence=sentence, details=(call,))
    lacking = [name for name in given if name not in got]
    if lacking:
        others = f" and {len(lacking) - 1} others" if len(lacking) > 1 else ""
        sentence = f"The dictionary that it returns lacks {lacking[0]}{others}."
        return Finding(holds=False, sentence=sentence, details=(call,))
    return None


def _runs_backwards(function: Callable[..., Any]) -> bool:
    """Return whether a stack is right on all examples once the blocks are numbered backwards.

    The search for the first stage that diverges tells the order by configurations that a learner's
    function need not follow.
    """
    for example in EXAMPLES["transformer"]():
        input_ids, parameters, config = _copies(example.arguments)
        backwards = {}
        for name, tensor in parameters.items():
            if name.startswith("transformer.h."):
                layer, _, rest = name.removeprefix("transformer.h.").partition(".")
                name = f"transformer.h.{config.n_layer - 1 - int(layer)}.{rest}"
            backwards[name] = tensor
        try:
            got = function(input_ids, backwards, config)
            check_close(got, example.expected, example.tolerance, what="", message="", dtype=DTYPE)
        except Exception:
            return False
    return True


def _dtypes(build: Callable[..., Any]) -> tuple[torch.dtype, ...]:
    """Return the dtypes in which a model with a learner's function gives logits."""
    return tuple(dtype for dtype in MODEL_DTYPES if not why_not(build, dtype))


def _judge_example(
    step: Step, learner: Learner, function: Callable[..., Any], example: Example
) -> Finding | None:
    """Compare one call with the reference.

    Returns:
        None if it is right; a finding without a sentence if only numbers are wrong.
    """
    call = ("Call", f"{step.function}: {example.call()}")
    try:
        got = function(*_copies(example.arguments))
        again = function(*_copies(example.arguments))
    except NotImplementedError:
        return _not_written(step, replace(learner, problems=()))
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        place = learner.place(error)
        known = advice.about_exception(text)
        if step.function == "head" and known == advice.TRANSPOSED:
            known = advice.TABLE
        return Finding(
            holds=False,
            sentence=known or f"It raises {text}.",
            details=(call, ("Raised", text), *((("Where", place),) if place else ())),
        )
    if got is None or isinstance(got, type(NotImplemented)):
        return Finding(holds=False, sentence="It returns nothing: add a return.", details=(call,))
    expected, tolerance = example.expected, example.tolerance
    try:
        check_close(
            got,
            expected,
            tolerance,
            what="result",
            message="",
            dtype=DTYPE,
            axes=example.axes,
        )
    except Violation as error:
        mismatch = error.mismatch
        if mismatch is None:
            problem = str(error).removeprefix(": ")
            return Finding(holds=False, sentence=f"The {problem}.", details=(call,))
        details = (
            call,
            ("Expected", f"{mismatch.expected} at {mismatch.where}"),
            ("Got", f"{mismatch.got}; allowed distance {mismatch.bound} ({mismatch.wrong})"),
        )
        if not torch.equal(got, again) and not bool(got.isnan().any()):
            return Finding(holds=False, sentence=advice.CHANGES, details=details)
        sentence = advice.NOT_A_NUMBER if bool(got.isnan().any()) else ""
        return Finding(holds=False, sentence=sentence, details=details)
    return None


def _copies(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the arguments with tensors of their own, since a function may change them."""

    def copy(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: copy(each) for name, each in value.items()}
        return value.clone() if isinstance(value, torch.Tensor) else value

    return [copy(each) for each in arguments.values()]


def _finding(
    step: Step, sentence: str, record: Record | None, details: tuple[tuple[str, str], ...] = ()
) -> Finding:
    """Put a mistake into words: its name, else what the broken law found."""
    clauses = record.clauses if record is not None else tuple(sorted(step.clauses))
    if record is not None:
        details = (*details, ("Law", laws.load()[record.law].sentence))
        sentence = sentence or _found_by(record)
    # a function whose examples are wrong is wrong, whatever its mistake is called
    sentence = sentence or "The numbers are wrong, by no mistake that has a name here."
    return Finding(
        holds=False,
        sentence=sentence,
        details=(*details, ("Read", f"attnspec explain {clauses[0]}")) if clauses else details,
    )


def _found_by(record: Record) -> str:
    """Return the sentence of a law about what it found, with the lines of code that it names."""
    lines = iter(record.message.splitlines())
    found = next((line for line in lines if line.startswith("Found")), "Found a law is broken")
    sentence = found.removeprefix("Found").strip()
    if not sentence.endswith(":"):
        return f"{sentence}."
    code = itertools.takewhile(lambda line: line.startswith("    "), lines)
    return "\n".join([sentence, *(line.strip() for line in code)])


def _sentence(subject: ModelImplementation) -> str:
    """Return the advice on the mistake of a model, or an empty string."""
    for refusals in (False, True):
        for mutant in likely_model_mutants(subject, refusals=refusals):
            if mutant.id in advice.MUTANTS:
                return advice.MUTANTS[mutant.id]
    divergence = first_divergence(subject)
    return advice.STAGES.get(divergence.stage, "") if divergence is not None else ""


# LAWS

LARGEST = {"n_layer": 3, "n_embd": 16, "vocab_size": 64, "length": 16, "n_positions": 64}
"""The largest sizes of a case that is tried; `attnspec check-gpt2` tries all cases."""

ELSEWHERE = frozenset({"greedy-generation-equals-hugging-faces"})
"""Laws that are not tried: the exercise compares generated text with the reference's."""


def _is_small(case: ModelCase) -> bool:
    return all(getattr(case, name) <= size for name, size in LARGEST.items())


def model_laws(clauses: Iterable[str] | None = None, *, with_cache: bool = False) -> list[Law]:
    """Return the laws of models that cite one of some clauses first, with their small cases.

    Args:
        clauses: their ids; None for all.
        with_cache: true for those that need a cache and nothing else, false for those that need
            no feature.
    """
    needs = {str(ModelFeature.CACHE)} if with_cache else set[str]()
    chosen = [
        replace(law, pinned=tuple(filter(_is_small, law.pinned)))
        for law in laws.load().values()
        if law.judges is SubjectKind.MODEL
        and set(map(str, law.needs)) == needs
        and law.name not in ELSEWHERE
        and (clauses is None or law.clauses[0] in clauses)
    ]
    return [law for law in chosen if law.pinned]


def _broken(
    step: Step, subject: ModelImplementation, chosen: Iterable[Law] | None = None
) -> Record | None:
    """Return the record of the first law that a model breaks by a mistake of its own, or None."""
    for law in model_laws(step.clauses) if chosen is None else chosen:
        record = check(law, subject, None, repeats=1)
        if record.outcome in (Outcome.FAILED, Outcome.ERRORED, Outcome.FLAKY):
            return record
    return None


# MODELS


def _failure(learner: Learner) -> str:
    """Return why the first call of a learner's model fails, or an empty string."""
    causes = [why_not(learner.functions[BUILD], dtype) for dtype in MODEL_DTYPES]
    return causes[-1] if all(causes) else ""


def _first_call_fails(cause: str) -> Finding:
    return Finding(
        holds=False,
        sentence=advice.about_exception(cause) or f"The first call of the model fails: {cause}",
        details=(("Raised", cause.splitlines()[0]),),
    )


def _model(learner: Learner) -> ModelImplementation:
    return declare_model(BUILD, learner.functions[BUILD])


def judge_in_model(step: Step, learner: Learner) -> Finding:
    """Judge a step in the model of `build`: by its stages, then by the laws of its clauses."""
    subject = replace(_model(learner), features=frozenset())
    if not is_deterministic(subject):
        return Finding(holds=False, sentence=advice.CHANGES)
    divergence = first_divergence(subject)
    if divergence is not None and step.computes(divergence):
        sentence = _sentence(subject)
        return _finding(step, sentence, None, (("Stage", str(divergence.place)),))
    record = _decided(step, subject, model_laws(step.clauses))
    return DONE if record is None else _finding(step, _sentence(subject), record)


def _decided(step: Step, subject: ModelImplementation, chosen: Iterable[Law]) -> Record | None:
    """Return the record of the first law that is broken and does not fail for an earlier stage."""
    for law in chosen:
        record = _broken(step, subject, [law])
        if record is None:
            continue
        record = with_model_diagnosis(record, subject)
        if record.outcome is not Outcome.NOT_DECIDED:
            return record
    return None


def _judge_build(step: Step, learner: Learner) -> Finding:
    if BUILD not in learner.functions:
        return _not_written(step, learner)
    cause = _failure(learner)
    if cause.startswith("NotImplementedError"):
        return _not_written(step, replace(learner, problems=()))
    if cause:
        return _first_call_fails(cause)
    subject = replace(_model(learner), features=frozenset())
    if not is_deterministic(subject):
        return _finding(step, advice.CHANGES, None, (("Read", "attnspec explain GPT-20"),))
    record = _decided(step, subject, model_laws())
    if record is None:
        return DONE
    # a mistake of this kind is none of load_parameters, which an earlier step found right
    is_loader = record.clauses[0] == "GPT-24" and LOAD in learner.functions
    sentence = "" if is_loader else _sentence(subject)
    return _finding(step, advice.NOT_LOADED if is_loader else sentence, record)


def _judge_cache(step: Step, learner: Learner) -> Finding:
    subject = _model(learner)
    if ModelFeature.CACHE not in subject.features:
        return Finding(
            holds=False,
            is_written=False,
            sentence=f"The cache is {NOT_WRITTEN}.",
            details=(("Write", "empty_cache(self), and the keyword cache of the model's call"),),
        )
    subject = replace(subject, features=frozenset({ModelFeature.CACHE}))
    record = _decided(step, subject, model_laws(with_cache=True))
    if record is None:
        return DONE
    # a cache that is changed in place may grow until the call raises, so that no mutant is like it
    is_spent = record.law == "a-cache-can-be-continued-twice"
    return _finding(step, _sentence(subject) or (advice.SPENT if is_spent else ""), record)


PROMPTS = ([3], [5, 1, 4], [2, 2, 6, 0, 1])


def _judge_generation(step: Step, learner: Learner) -> Finding:
    """Compare greedy generation with the reference's, both with one correct model."""
    function = learner.functions.get(GENERATE)
    if function is None:
        return _not_written(step, learner)
    inputs = draw(ModelCase(n_layer=2, n_head=2, d_head=4, vocab_size=17, n_positions=12, seed=9))
    model = COMPACT.build(inputs.config, dict(inputs.state_dict))
    for prompt in PROMPTS:
        for count in (0, 1, 6):
            expected = list(
                generate(model, prompt, max_new_tokens=count, use_cache=False, greedy=True)
            )
            call = ("Call", f"generate(model, torch.tensor([{prompt}]), {count})")
            try:
                got = function(model, torch.tensor([prompt]), count)
                tokens = [int(each) for each in got]
            except NotImplementedError:
                return _not_written(step, replace(learner, problems=()))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                return Finding(
                    holds=False,
                    sentence=f"It raises {text}, or returns no list of token ids.",
                    details=(call, ("Where", learner.place(error))),
                )
            if tokens != expected:
                has_prompt = tokens == [*prompt, *expected]
                return Finding(
                    holds=False,
                    sentence="The prompt is returned too: return the new tokens alone."
                    if has_prompt
                    else "The tokens differ. Each new token is the likeliest by the logits at the "
                    "last position, and is appended before the next is chosen.",
                    details=(call, ("Expected", str(expected)), ("Got", str(tokens))),
                )
    return DONE


_LATER = {BUILD: _judge_build, CACHE: _judge_cache, GENERATE: _judge_generation}

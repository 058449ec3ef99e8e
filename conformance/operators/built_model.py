"""The subject of laws about a model that a function builds: BERT and the encoder-decoder."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, ClassVar, Protocol

import torch

from attnspec.conformance.comparison.close import check_close
from attnspec.conformance.comparison.violation import Explained, NotClaimed, Raised, Violation
from attnspec.conformance.models.bounds.backward import Gradients
from attnspec.conformance.models.bounds.enclosure import Arithmetic
from attnspec.conformance.operators.gated_mlp.subject import Allowed
from attnspec.conformance.operators.subject import OperatorCall, OperatorSubject, checked

AXES = ("text", "position", "channel")
"""Names of the axes of a state in a message."""

Weights = Mapping[str, torch.Tensor]
Inputs = Mapping[str, torch.Tensor]
Results = dict[str, torch.Tensor]


class Mistaken(Protocol):
    """A class of models with one mistake.

    Attributes:
        title: the mistake, in words.
    """

    title: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class ModelRun:
    """A model that was built and called, as a failure shows it.

    Attributes:
        case: from which the parameters are drawn.
        weights: the parameters, which a law may have changed.
        arguments: of the model, or of `start` if there are chunks.
        chunks: ids of each step; None for one call with all of them.
        places: code of each result by its name; `out` is what the call returns.
        differentiated: names of the parameters whose gradients are computed, `gradients` by name.
    """

    case: Any
    weights: Weights
    arguments: Mapping[str, Any]
    chunks: tuple[torch.Tensor, ...] | None = None
    places: Mapping[str, str]
    differentiated: tuple[str, ...] = ()


@dataclass(kw_only=True)
class BuiltModelSubject(OperatorSubject):
    """A model under test.

    Attributes:
        last_model: the last model that was called, for the description of a failure.
        explains: whether the cause of a wrong result is looked for, which takes seconds.
    """

    last_model: ModelRun | None = field(default=None, init=False)
    explains: bool = field(default=True, init=False)

    MISTAKES: ClassVar[tuple[type[Mistaken], ...]]
    """Models with one mistake each, by which a wrong result is explained."""
    IDS: ClassVar[tuple[str, ...]] = ("input_ids",)
    """The inputs that a model takes by position."""
    UNUSED: ClassVar[tuple[str, ...]] = ()
    """The beginnings of the names of parameters that the logits do not depend on."""

    def results(self, case: Any, weights: Weights, inputs: Inputs, base: type | None) -> Results:
        """Return every result of a correct or mistaken model by its name, in order of computation.

        Args:
            case: the sizes.
            weights: the parameters.
            inputs: of the call.
            base: the class of the model; None for the oracle.
        """
        raise NotImplementedError

    def radii(self, case: Any, weights: Weights, inputs: Inputs, arithmetic: Arithmetic) -> Results:
        """Return the largest error of every result by its name."""
        raise NotImplementedError

    def oracle(self, case: Any, weights: Weights) -> Any:
        """Return a correct model of the parameters."""
        raise NotImplementedError

    def enclose_gradients(
        self, case: Any, weights: Weights, inputs: Inputs, arithmetic: Arithmetic
    ) -> Gradients:
        """Enclose the gradient of each parameter that the logits depend on."""
        raise NotImplementedError

    def call_case(self, case: Any, weights: Weights, inputs: Inputs) -> Results:
        """Return the results that a case requests."""
        raise NotImplementedError

    def call_all(self, case: Any, weights: Weights, inputs: Inputs) -> Results:
        """Return the results of all calls that tell about a wrong result of a case."""
        raise NotImplementedError

    def is_real(self, name: str, value: torch.Tensor, inputs: Inputs) -> torch.Tensor:
        """Return true for the elements of a result that belong to real positions."""
        raise NotImplementedError

    def stage(self, name: str) -> str:
        """Return the stage that computes a result, in words; empty if a message omits it."""
        raise NotImplementedError

    def run_model(self, run: ModelRun, make: Any, *, with_gradients: bool = False) -> Any:
        """Call a model, and keep what is needed to repeat the call.

        Args:
            run: the call.
            make: makes it.
            with_gradients: whether it records gradients.

        Raises:
            Raised: if the function or the model raises.
        """
        self.last_model = run

        def in_mode() -> Any:
            with torch.set_grad_enabled(with_gradients):
                return make()

        try:
            return self.run(OperatorCall(tensors={}, arguments=()), in_mode)
        finally:
            self.last_call = None  # the run says more

    def expect(self, case: Any, weights: Weights, inputs: Inputs) -> dict[str, Allowed]:
        """Return the exact results by name in float64, and the distances that are allowed."""
        wide = {name: each.double() for name, each in weights.items()}
        values = self.results(case, wide, inputs, None)
        dtype = next(iter(weights.values())).dtype
        own = self.radii(case, weights, inputs, Arithmetic.of(dtype))
        # the oracle rounds too
        oracle = self.radii(case, weights, inputs, Arithmetic.of(torch.float64))
        return {
            name: Allowed(value=value, bound=own[name] + oracle[name])
            for name, value in values.items()
        }

    def gradients(self, case: Any, weights: Weights, inputs: Inputs) -> Results:
        """Return the gradient of each parameter that the logits depend on.

        Raises:
            Raised: if the function or the model raises.
            Violation: if a parameter has no gradient, or one of a wrong form.
        """
        leaves = {
            name: each.detach().clone().requires_grad_()
            for name, each in weights.items()
            if not name.startswith(self.UNUSED)
        }
        options = {name: each.clone() for name, each in inputs.items()}
        run = ModelRun(
            case=case,
            weights=weights,
            arguments=dict(options),
            places={f"gradient of {name}": f"gradients[{name!r}]" for name in leaves},
            differentiated=tuple(leaves),
        )
        ids = [options.pop(name) for name in self.IDS]

        def make() -> Any:
            model = self.implementation.function(case.config, {**weights, **leaves})
            shape = (*ids[-1].shape, case.vocab)
            logits = checked(model(*ids, **options), shape, case.dtype, "logits")
            own = dict(getattr(model, "named_parameters", dict)())
            return gradients_of(logits, leaves, own, case.draw_cotangent())

        found = self.run_model(run, make, with_gradients=True)
        for name, leaf in leaves.items():
            if found.get(name) is None:
                raise Violation(f"no gradient reaches {name}")
            checked(found[name], tuple(leaf.shape), case.dtype, f"gradient of {name}")
        result: Results = found
        return result

    def expect_gradients(self, case: Any, weights: Weights, inputs: Inputs) -> dict[str, Allowed]:
        """Return the exact gradients in float64, and the distances that are allowed."""
        own, of_oracle = (
            self.enclose_gradients(case, weights, inputs, Arithmetic.of(dtype))
            for dtype in (case.dtype, torch.float64)  # the oracle rounds too
        )
        wide = {name: each.detach().double() for name, each in weights.items()}
        leaves = {name: wide[name].requires_grad_() for name in own}
        options = dict(inputs)
        ids = [options.pop(name) for name in self.IDS]
        with torch.enable_grad():
            logits = self.oracle(case, wide)(*ids, **options)
        found = torch.autograd.grad(logits, list(leaves.values()), case.draw_cotangent().double())
        return {
            name: Allowed(value=value, bound=own[name].radius + of_oracle[name].radius)
            for name, value in zip(leaves, found, strict=True)
        }

    def judge_gradients(self, case: Any) -> None:
        """Check the gradient of each parameter, those that are computed first first.

        Raises:
            NotClaimed: if the bounds are wider than the gradients.
            Explained: naming what a wrong model does, if its results are wrong too.
            Violation: naming the first gradient that is wrong.
        """
        weights, inputs = case.draw_parameters(), case.draw()
        got = self.gradients(case, weights, inputs)
        expected = self.expect_gradients(case, weights, inputs)
        with self.explained(case, weights, inputs):
            # the head first, where a wrong gradient begins
            for name, allowed in expected.items():
                check_close(
                    got[name],
                    allowed.value,
                    allowed.bound,
                    what=f"gradient of {name}",
                    message="a gradient is wrong",
                    axes=("row", "channel")[-allowed.value.dim() :],
                )
        # the gradient of the keys' biases is zero, and no row of an unused table has one
        is_evidence = all(
            (largest := float(allowed.value.abs().max())) < 1e-9
            or float(allowed.bound.max()) < largest / 2
            for allowed in expected.values()
        )
        if not is_evidence:
            raise NotClaimed("the bound of these gradients is wider than the gradients")

    def judge_case(self, case: Any, message: str) -> None:
        """Check the results of a case against the definition."""
        self.judge(case, case.draw_parameters(), case.draw(), message)

    def judge(
        self, case: Any, weights: Weights, inputs: Inputs, message: str, *, only: str = ""
    ) -> Results:
        """Check the results of a call at all real positions, and return them.

        Args:
            case: the sizes, and what is requested.
            weights: the parameters.
            inputs: of the call.
            message: the meaning of a wrong result.
            only: the word with which the names of the results begin that are checked.

        Raises:
            Explained: naming what a wrong model does, if there is a name for it.
            Violation: with the message.
        """
        expected = self.expect(case, weights, inputs)
        got = self.call_case(case, weights, inputs)
        judged = {name: each for name, each in expected.items() if name.startswith(only)}
        with self.explained(case, weights, inputs):
            self.check_results(got, judged, inputs, message)
        return got

    @contextmanager
    def explained(self, case: Any, weights: Weights, inputs: Inputs) -> Iterator[None]:
        """Name the cause of a wrong result or gradient; a failure shows the call that was judged.

        Raises:
            Explained: naming what a wrong model does, if there is a name for it.
            Violation: of the comparison, if there is none.
        """
        run = self.last_model
        try:
            yield
        except Violation as error:
            cause = self.cause(case, weights, inputs) if self.explains else ""
            self.last_model = run
            if cause:
                raise Explained(cause, error.mismatch) from None
            raise

    def check_results(
        self,
        got: Mapping[str, torch.Tensor],
        expected: Mapping[str, Allowed],
        inputs: Inputs,
        message: str,
    ) -> None:
        """Check results at all real positions, in order of computation.

        Raises:
            Violation: with the message.
        """
        for name, allowed in expected.items():
            if name in got:
                is_real = self.is_real(name, allowed.value, inputs)
                check_close(
                    torch.where(is_real, got[name].double(), 0.0),
                    torch.where(is_real, allowed.value, 0.0),
                    torch.where(is_real, allowed.bound, 0.0),
                    what=name,
                    message=message,
                    axes=AXES if allowed.value.dim() == 3 else AXES[::2],
                )

    def cause(self, case: Any, weights: Weights, inputs: Inputs) -> str:
        """Return the first stage of a call that diverges, and what is done there instead.

        Hidden states are requested if they are claimed. One mistake is looked for, and then two of
        those that change the stage at all.

        Returns:
            Words, or an empty string if no mistake of the list gives this result.
        """
        expected = self.expect(case, weights, inputs)
        got: Results = {}
        with suppress(Raised, Violation):
            got = self.call_all(case, weights, inputs)
        diverging = (
            name
            for name, allowed in expected.items()
            if name in got and not self._is_near(name, got[name], allowed, inputs)
        )
        wrong = next(diverging, "")
        if not wrong:
            return ""
        has_states = "hidden_states" in self.implementation.features
        stage = self.stage(wrong) if has_states or wrong != "logits" else ""
        wide = {name: each.double() for name, each in weights.items()}
        relevant: list[type[Mistaken]] = []
        for count in (1, 2):
            fitting = []
            for mistakes in combinations(self.MISTAKES if count == 1 else relevant, count):
                base = type("Mistaken", mistakes, {})
                with suppress(RuntimeError, IndexError):  # some mistakes fit no such shapes
                    value = self.results(case, wide, inputs, base)[wrong]
                    allowed = Allowed(value=value, bound=expected[wrong].bound)
                    if self._is_near(wrong, got[wrong], allowed, inputs):
                        fitting.append(" and ".join(each.title for each in mistakes))
                    if count == 1 and not self._is_near(wrong, value, expected[wrong], inputs):
                        relevant += mistakes
            if fitting:
                return (f"{stage}: " if stage else "") + " or ".join(fitting[:3])
        return f"{stage} is the first stage that diverges" if stage else ""

    def _is_near(self, name: str, got: torch.Tensor, allowed: Allowed, inputs: Inputs) -> bool:
        """Return whether a result is another at all real positions."""
        is_real = self.is_real(name, got, inputs)
        near = (got.double() - allowed.value).abs() <= allowed.bound
        return bool(near[is_real].all())


def gradients_of(
    logits: torch.Tensor, leaves: Weights, own: Weights, cotangent: torch.Tensor
) -> dict[str, torch.Tensor | None]:
    """Return gradients of the tensors that a model was built from, or of its own parameters.

    Args:
        logits: of a call that records gradients.
        leaves: the tensors that the model was built from.
        own: the parameters of the model by their names.
        cotangent: of the logits.
    """
    if not logits.requires_grad:
        return {}
    found: dict[str, torch.Tensor | None] = {}
    for sources in filter(None, (leaves, {name: own[name] for name in leaves if name in own})):
        grads = torch.autograd.grad(
            logits, list(sources.values()), cotangent, retain_graph=True, allow_unused=True
        )
        found |= {
            name: grad for name, grad in zip(sources, grads, strict=True) if found.get(name) is None
        }
    return found

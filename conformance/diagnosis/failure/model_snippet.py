"""Snippets of models: configuration, parameters, token ids and call, as code to paste."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from attnspec.conformance.attention.import_code import import_code_of
from attnspec.conformance.attention.values import seed_of
from attnspec.conformance.comparison.violation import Mismatch
from attnspec.conformance.diagnosis.failure.snippet import SMALL, comment_on
from attnspec.conformance.diagnosis.failure.tensor_code import TooLarge, literal
from attnspec.conformance.models.case import ModelCase, draw_parameters, shapes
from attnspec.conformance.models.recording import ModelCall, Recording
from attnspec.spec import GPT2Config, ModelImplementation

GRADIENT = "gradient of "
"""The name of a tensor of gradients begins with it."""


def model_snippet(
    subject: ModelImplementation, made: Recording, mismatch: Mismatch | None, case: Any
) -> str:
    """Return code that builds a model again and repeats a call of it.

    Args:
        subject: the model.
        made: what the law built and called; the call that returned the wrong number is repeated,
            or else the last one.
        mismatch: the worst element, for the choice of the call and the comment at the end.
        case: the case, from whose seed parameters are drawn.

    Returns:
        The code; an empty string if the law made no call, or if a tensor that it changed is too
        large to write out.
    """
    call = _wrong_call(made.calls, mismatch)
    built = made.parameters_of(call.model) if call else made.built[-1][1:] if made.built else None
    if built is None:
        return ""
    config, weights = built
    try:
        lines = ["import torch", *_parameters(config, weights, case)]
        lines[1:1] = _imports(subject, lines)
        if any(weight.requires_grad for weight in weights.values()):
            lines.append(
                "weights = {name: each.requires_grad_() for name, each in weights.items()}"
            )
        lines.append("model = build(config, weights)")
        if call is not None:
            lines += _calls(_chain(made.calls, call), config, case)
            lines += _printed(call, mismatch, weights, case)
    except TooLarge:
        return ""
    return "\n".join(lines)


def _imports(subject: ModelImplementation, lines: Sequence[str]) -> list[str]:
    from attnspec import implementations

    name = "draw_parameters" if any("draw_parameters(" in line for line in lines) else "shapes"
    code = import_code_of(subject.build, "build")
    if subject.name in implementations.model_names():
        load = f"load_model({subject.name!r}).build"
        code = f"from attnspec.implementations import load_model; build = {load}"
    return [
        f"from attnspec.conformance.models.case import {name}",
        "from attnspec.spec import GPT2Config",
        code,
        "",
    ]


def _parameters(
    config: GPT2Config, weights: Mapping[str, torch.Tensor], case: Any
) -> Iterator[str]:
    """Yield the lines that define `config` and `weights`.

    All parameters are drawn, or those of a model that passes its embeddings on; those that a law
    has changed are written out.
    """
    values = {each.name: getattr(config, each.name) for each in fields(config)}
    defaults = {each.name: each.default for each in fields(config)}
    given = (f"{name}={value!r}" for name, value in values.items() if value != defaults[name])
    yield f"config = GPT2Config({', '.join(given)})"
    dtype = next(iter(weights.values())).dtype
    plain = {
        name: torch.full(shape, float(".ln_" in name and "weight" in name), dtype=dtype)
        for name, shape in shapes(config).items()
    }
    code = (
        'weights = {name: torch.full(shape, float(".ln_" in name and "weight" in name), '
        f"dtype={dtype}) for name, shape in shapes(config).items()}}"
    )
    bases = [(code, plain)]
    for seed in (case.seed, case.seed + 1) if isinstance(case, ModelCase) else ():
        options: dict[str, Any] = {"seed": seed, "spread": case.initializer_range}
        if case.embedding_range is not None:
            options["embedding_spread"] = case.embedding_range
        drawn = draw_parameters(config, **options, dtype=dtype)
        arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
        code = f"weights = draw_parameters(config, {arguments}, dtype={dtype})"
        bases.append((code, drawn))
    code, base = min(bases, key=lambda each: sum(_numbers_changed(weights, each[1])))
    if sum(_numbers_changed(weights, base)) > SMALL:
        raise TooLarge("the parameters that a law has changed")
    yield code
    for name, weight in weights.items():
        if name not in base or not torch.equal(weight.detach(), base[name]):
            yield f"weights[{name!r}] = {literal(weight.detach())}"
    for name in base.keys() - weights.keys():
        yield f"del weights[{name!r}]"


def _numbers_changed(
    weights: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]
) -> Iterator[int]:
    for name, weight in weights.items():
        if name not in base or not torch.equal(weight.detach(), base[name]):
            yield weight.numel()


def _wrong_call(calls: Sequence[ModelCall], mismatch: Mismatch | None) -> ModelCall | None:
    """Return the last call that returned the wrong number, or else the last call of all."""
    if mismatch is not None:
        try:
            number = float(mismatch.got)
        except ValueError:
            return calls[-1] if calls else None
        for call in reversed(calls):
            if any(_holds(tensor, number) for tensor in _tensors(call.result)):
                return call
    return calls[-1] if calls else None


def _tensors(result: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result: logits, or a pair of them and hidden states or a cache."""
    if isinstance(result, torch.Tensor):
        yield result.detach()
    elif isinstance(result, tuple | list):
        for part in result:
            yield from _tensors(part)


def _holds(tensor: torch.Tensor, number: float) -> bool:
    if number != number:
        return bool(tensor.isnan().any())
    # a number of a message has nine digits or more
    return bool(((tensor.double() - number).abs() <= 1e-8 * abs(number)).any())


def _chain(calls: Sequence[ModelCall], call: ModelCall) -> list[ModelCall]:
    """Return a call, and before it the calls that made the cache which it continues."""
    chain, cache = [call], call.options.get("cache")
    for earlier in reversed(calls[: calls.index(call)]):
        result = earlier.result
        if cache is None or earlier.model is not call.model or not isinstance(result, tuple):
            continue
        if len(result) > 1 and result[1] is cache and "cache" in earlier.options:
            chain.insert(0, earlier)
            cache = earlier.options["cache"]
    return chain


FEW = 3
"""Calls with a cache that are written one by one; more are written as a loop."""


def _calls(chain: Sequence[ModelCall], config: GPT2Config, case: Any) -> Iterator[str]:
    """Yield the lines that make calls, each with the cache that the one before returned."""
    has_cache = chain[0].options.get("cache") is not None
    if has_cache:
        yield "cache = model.empty_cache()"
    indent = ""
    if not any(_requires_grad(each.result) for each in chain):
        yield "with torch.no_grad():"
        indent = "    "
    if len(chain) > FEW and all(call.options.keys() == {"cache"} for call in chain):
        ids = torch.cat([call.input_ids for call in chain], dim=1)
        lengths = [call.input_ids.shape[1] for call in chain]
        yield f"{indent}ids = {_ids(ids, config, case)}"
        sizes = lengths[0] if len(set(lengths)) == 1 else lengths
        yield f"{indent}for part in ids.split({sizes}, dim=1):"
        yield f"{indent}    out, cache = model(part, cache=cache)"
        return
    for call in chain:
        yield f"{indent}ids = {_ids(call.input_ids, config, case)}"
        arguments = ["ids"]
        for name, value in call.options.items():
            if name == "cache":
                arguments.append("cache=cache")
            else:
                code = literal(value) if isinstance(value, torch.Tensor) else repr(value)
                arguments.append(f"{name}={code}")
        has_states = call.options.get("output_hidden_states")
        results = ("logits, cache, out" if has_states else "out, cache") if has_cache else "out"
        yield f"{indent}{results} = model({', '.join(arguments)})"


def _requires_grad(result: Any) -> bool:
    return isinstance(result, torch.Tensor) and result.requires_grad


def _ids(ids: torch.Tensor, config: GPT2Config, case: Any) -> str:
    if ids.numel() <= SMALL:
        return literal(ids)
    shape = tuple(ids.shape)
    seed = seed_of(getattr(case, "seed", 0), "ids")
    drawn = torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(seed))
    if not torch.equal(drawn, ids):
        raise TooLarge("token ids")
    generator = f"torch.Generator().manual_seed({seed})"
    return f"torch.randint({config.vocab_size}, {shape}, generator={generator})"


def _printed(
    call: ModelCall, mismatch: Mismatch | None, weights: Mapping[str, torch.Tensor], case: Any
) -> Iterator[str]:
    """Yield the lines that print the wrong tensor: what a call returns, or a gradient."""
    name = "" if mismatch is None else mismatch.what.partition(GRADIENT)[2]
    if not isinstance(call.result, torch.Tensor) or name not in weights:
        yield f"print(out){comment_on(mismatch, 'logits')}"
        return
    seed, shape = seed_of(getattr(case, "seed", 0), "cotangent"), tuple(call.result.shape)
    generator = f"torch.Generator().manual_seed({seed})"
    yield f"cotangent = torch.randn({shape}, generator={generator}, dtype=torch.float64)"
    yield "(out * cotangent.to(out)).sum().backward()"
    yield 'parameters = weights | dict(getattr(model, "named_parameters", dict)())'
    yield f"print(parameters[{name!r}].grad){comment_on(mismatch, 'logits')}"

"""The steps of the exercise "write GPT-2 yourself", in the order in which data flows."""

from dataclasses import dataclass

from attnspec.conformance.diagnosis.stages.names import NORMS, Divergence, Stage


@dataclass(frozen=True, kw_only=True)
class Step:
    """A step of the exercise: one function to write.

    Attributes:
        name: the part of GPT-2, in words.
        function: the name by which the function is found.
        signature: its parameters, as the learner writes them.
        module: the file of the skeleton that has it, without `.py`.
        clauses: the clauses whose laws judge it.
        stages: the stages of a whole model that it computes.
        is_optional: whether the exercise ends without it.
    """

    name: str
    function: str
    signature: str
    module: str
    clauses: frozenset[str] = frozenset()
    stages: frozenset[Stage] = frozenset()
    is_optional: bool = False

    def computes(self, divergence: Divergence) -> bool:
        """Return whether a stage that diverges in a whole model belongs to this step."""
        if divergence.clauses is not None and divergence.stage in _NORM_STAGES:
            return bool(divergence.clauses & self.clauses & (NORMS | {"GPT-4"}))
        return divergence.stage in self.stages


_NORM_STAGES = frozenset({Stage.FIRST_NORM, Stage.SECOND_NORM})

LOAD = "load_parameters"
BUILD = "build"
CACHE = "cache"
GENERATE = "generate"
ENGLISH = "English"

STEPS = (
    Step(
        name="names and shapes",
        function=LOAD,
        signature="load_parameters(config, state_dict)",
        module="parameters",
        clauses=frozenset({"GPT-24", "GPT-25"}),
    ),
    Step(
        name="embeddings",
        function="embed",
        signature="embed(input_ids, token_table, position_table)",
        module="embedding",
        clauses=frozenset({"EMB-1", "EMB-2", "EMB-3", "EMB-4"}),
        stages=frozenset({Stage.EMBEDDING, Stage.TOKENS, Stage.POSITIONS}),
    ),
    Step(
        name="LayerNorm",
        function="layer_norm",
        signature="layer_norm(x, weight, bias, epsilon)",
        module="norm",
        clauses=NORMS,
        stages=_NORM_STAGES,
    ),
    Step(
        name="linear map",
        function="linear",
        signature="linear(x, weight, bias)",
        module="linear_map",
        clauses=frozenset({"GPT-1"}),
        stages=frozenset({Stage.PROJECTIONS}),
    ),
    Step(
        name="GELU",
        function="gelu",
        signature="gelu(x)",
        module="activation",
        clauses=frozenset({"ACT-1", "ACT-2", "ACT-3", "ACT-4"}),
        stages=frozenset({Stage.ACTIVATION}),
    ),
    Step(
        name="MLP",
        function="mlp",
        signature="mlp(x, in_weight, in_bias, out_weight, out_bias)",
        module="feed_forward",
        clauses=frozenset({"GPT-1", "ACT-1", "GPT-5"}),
        stages=frozenset({Stage.MLP_MAPS}),
    ),
    Step(
        name="attention of one head",
        function="causal_attention",
        signature="causal_attention(query, key, value)",
        module="attention",
        clauses=frozenset({"GPT-18", "GPT-6"}),
        stages=frozenset({Stage.MASK, Stage.SCALE}),
    ),
    Step(
        name="multi-head attention",
        function="multi_head_attention",
        signature="multi_head_attention(x, qkv_weight, qkv_bias, out_weight, out_bias, n_head)",
        module="heads",
        clauses=frozenset({"GPT-2", "GPT-19"}),
        stages=frozenset({Stage.HEADS, Stage.BATCH}),
    ),
    Step(
        name="block",
        function="block",
        signature="block(x, parameters, config)",
        module="transformer_block",
        clauses=frozenset({"GPT-3", "GPT-4", "GPT-5"}),
        stages=frozenset({Stage.FIRST_RESIDUAL, Stage.SECOND_RESIDUAL, Stage.BLOCK}),
    ),
    Step(
        name="stack and final LayerNorm",
        function="transformer",
        signature="transformer(input_ids, parameters, config)",
        module="stack",
        clauses=frozenset({"GPT-8"}),
        stages=frozenset({Stage.ORDER, Stage.FINAL_NORM}),
    ),
    Step(
        name="head",
        function="head",
        signature="head(x, parameters, config)",
        module="language_head",
        clauses=frozenset({"GPT-9"}),
        stages=frozenset({Stage.HEAD}),
    ),
    Step(
        name="the whole model",
        function=BUILD,
        signature="build(config, state_dict)",
        module="model",
        stages=frozenset(Stage),
    ),
    Step(
        name="KV cache",
        function=CACHE,
        signature="model(input_ids, cache=model.empty_cache())",
        module="model",
        is_optional=True,
    ),
    Step(
        name="generation",
        function=GENERATE,
        signature="generate(model, input_ids, max_new_tokens)",
        module="generation",
        is_optional=True,
    ),
    Step(name="English text", function=ENGLISH, signature="build(config, state_dict)", module=""),
)
"""The steps. All but the last three judge numbers; the last continues a sentence."""

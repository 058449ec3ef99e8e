"""What a learner reads about a mistake: its name, and the line that mends it."""

from collections.abc import Mapping

from attnspec.conformance.diagnosis.stages.names import Stage

MUTANTS: Mapping[str, str] = {
    "own-token-clamped": "A token id that has no row is moved to the last row. Let it raise.",
    "own-token-negative-wraps": "A negative token id counts from the end of the table, as indices "
    "of Python do. Let it raise: torch.nn.functional.embedding does.",
    "own-token-next-row": "Each token takes the row after its own: ids count from zero.",
    "own-embedding-scaled": "The token rows are multiplied by the root of n_embd, as in the "
    "Transformer of 2017. GPT-2 adds the two rows as they are.",
    "own-no-positions": "The position rows are missing: add position_table[:length].",
    "own-positions-clamped": "A text that is longer than the position table reuses its last row. "
    "Let it raise.",
    "own-positions-from-one": "Positions are counted from one. The first token has position 0: "
    "torch.arange(length).",
    "own-generation-positions-from-one": "Positions are counted from one. The first token has "
    "position 0: torch.arange(length).",
    "MDL-04": "The variance is divided by n - 1, which is the default of torch.var. LayerNorm "
    "divides by n: pass correction=0.",
    "own-epsilon-outside": "Epsilon is added to the deviation, outside the root. It is added to "
    "the variance: torch.sqrt(variance + epsilon).",
    "own-epsilon-fixed": "Epsilon is always 1e-5. Use the argument epsilon.",
    "own-no-epsilon": "Epsilon is missing: divide by torch.sqrt(variance + epsilon).",
    "own-rms-norm": "The mean is not subtracted: that is RMSNorm. LayerNorm normalizes x - mean.",
    "own-variance-by-moments": "The variance is computed as the mean square minus the squared "
    "mean, which loses all digits if the mean is large. Average (x - mean)**2.",
    "own-norm-over-sequence": "Mean and variance run over the whole sequence. Take them over the "
    "last axis only: dim=-1, keepdim=True.",
    "own-norm-over-batch": "Mean and variance run over the batch. Take them over the last axis "
    "only: dim=-1, keepdim=True.",
    "own-bias-before-gain": "The bias is added before the row is multiplied by the weight. "
    "Multiply first: normalized * weight + bias.",
    "own-erf-gelu": "This is the erf form of GELU, which is the default of PyTorch. GPT-2 uses "
    'the tanh form: approximate="tanh", or 0.5x(1 + tanh(√(2/π)(x + 0.044715x³))).',
    "own-quick-gelu": "This is the quick approximation x·sigmoid(1.702x). GPT-2 uses the tanh "
    "form: 0.5x(1 + tanh(√(2/π)(x + 0.044715x³))).",
    "own-projection-transposed": "The weight is transposed. GPT-2 stores it as (inputs, outputs), "
    "the layout of Conv1D, so the map is x @ weight + bias. torch.nn.Linear and "
    "torch.nn.functional.linear take the transpose, (outputs, inputs).",
    "own-square-mlp-transposed": "The weights of the MLP are transposed. GPT-2 stores them as "
    "(inputs, outputs): x @ weight + bias.",
    "own-no-linear-bias": "The bias is missing: x @ weight + bias.",
    "MDL-03": "The packed projection is split head by head. Its columns are all queries, then "
    "all keys, then all values: split it in three first, then into heads.",
    "own-key-query-value": "Keys and queries are swapped. The columns of the packed projection "
    "are queries, then keys, then values.",
    "own-heads-strided": "A head takes every n_head-th channel. Head 0 has the first d_head "
    "channels, head 1 the next: view(batch, length, n_head, d_head).transpose(1, 2).",
    "own-heads-by-view": "The heads are split by a view of (batch, n_head, length, d_head), "
    "which mixes tokens. Split the channels, then move the axis: "
    "view(batch, length, n_head, d_head).transpose(1, 2).",
    "own-heads-merged-by-view": "The heads are merged without moving their axis back, which mixes "
    "tokens: transpose(1, 2).reshape(batch, length, n_embd).",
    "own-no-scale": "The scores are not scaled: divide them by the root of d_head, "
    "math.sqrt(query.shape[-1]).",
    "own-scale-of-d-model": "The scores are divided by the root of n_embd. Divide by the root of "
    "the channels of one head: math.sqrt(query.shape[-1]).",
    "own-future-leak": "The causal mask is off by one: each token also reads the one after it. "
    "Hide what lies above the diagonal: triu(diagonal=1) is hidden, tril() is visible.",
    "own-mask-strict": "The causal mask is off by one: it hides each token from itself. A token "
    "reads itself and what comes before: tril() is visible, with the diagonal.",
    "own-mask-finite": "Later tokens are hidden by a number that is too small. Use minus "
    "infinity: masked_fill(hidden, float('-inf')).",
    "MSK-40": "Later tokens are hidden by adding -10000, which a large score outweighs. Use "
    "minus infinity: masked_fill(hidden, float('-inf')).",
    "own-hidden-scores-zero": "Scores of later tokens are set to zero, and exp(0) = 1 is no small "
    "weight. Use minus infinity: masked_fill(hidden, float('-inf')).",
    "own-masked-after-softmax": "The mask comes after the softmax, so that the weights of a row no "
    "longer sum to one. Mask the scores, then take the softmax.",
    "own-softmax-over-queries": "The softmax runs over the queries. The weights of a query sum to "
    "one over its keys: softmax(dim=-1).",
    "own-attention-over-batch": "The sequences of a batch read each other's keys. Keep the batch "
    "as the first axis of queries, keys and values.",
    "own-no-residual-attention": "Attention replaces the stream. Its output is added: "
    "x = x + attention(...).",
    "MDL-05": "LayerNorm comes after each sum (post-norm), as in the Transformer of 2017. In GPT-2 "
    "it comes before each branch: x = x + attention(ln_1(x)), then x = x + mlp(ln_2(x)).",
    "own-residual-after-norm": "The normalized rows are added to. Add to x itself: "
    "x = x + attention(ln_1(x)).",
    "own-norms-swapped": "ln_1 and ln_2 are swapped: ln_1 belongs to attention, ln_2 to the MLP.",
    "own-parallel-block": "The MLP reads the stream from before attention. Let it read the sum: "
    "x = x + attention(ln_1(x)), then x = x + mlp(ln_2(x)).",
    "own-no-final-norm": "The final LayerNorm is missing: apply transformer.ln_f after the last "
    "block.",
    "own-generation-head-without-norm": "The final LayerNorm is missing: apply transformer.ln_f "
    "after the last block.",
    "own-final-norm-twice": "The final LayerNorm is applied twice.",
    "MDL-08": "The head is not tied: it has parameters of its own, which no checkpoint fills. "
    "GPT-2's head is the token table: x @ parameters['transformer.wte.weight'].T.",
    "own-logits-shifted": "The logits are shifted by one position: those at position t say what "
    "follows token t.",
    "own-dropout-in-evaluation": "Equal calls give different results: dropout is on. Leave it "
    "out, or call model.eval() in build.",
    "CAC-01": "With a cache, positions start again at zero. The first new token has the position "
    "after the cached ones: torch.arange(past, past + length).",
    "own-generation-cached-position-early": "With a cache, a new token gets the position of the "
    "one before it. Count on from the length of the cache: torch.arange(past, past + length).",
    "MSK-05": "With a cache, the causal mask begins at the first cached key, and hides the past. "
    "Query i reads keys up to past + i: torch.ones(length, past + length).tril(past).",
    "CAC-02": "The length of the cache is read from the wrong axis: keys have the shape (batch, "
    "n_head, length, d_head).",
    "CAC-04": "The first token after the prompt is fed twice.",
    "own-cache-in-place": "A cache is changed in place. Return a new one, so that the old one can "
    "be continued again.",
    "own-cache-in-the-model": "The model keeps keys and values itself. Keep them in the cache "
    "that the caller passes.",
    "own-missing-parameter-zero": "A parameter that is missing is taken as zero. Raise an error "
    "that names it.",
    "own-extra-parameter-ignored": "A parameter that this model does not have is ignored. Raise "
    "an error that names it.",
    "own-misshapen-parameter-broadcast": "A parameter of a wrong shape is accepted. Compare its "
    "shape with the expected one, and raise an error that names it.",
    "own-unnamed-parameter": "The error does not name the parameter that does not fit.",
    "own-parameters-by-order": "Parameters are taken by their order. Take them by their names.",
}
"""By the id of a mutant, i.e. a planted bug: what a learner who made the same mistake reads."""

STAGES: Mapping[Stage, str] = {
    Stage.EMBEDDING: "A token's row of the stream is its row of wte plus its row of wpe.",
    Stage.TOKENS: "A token does not select its own row of wte.",
    Stage.POSITIONS: "A token does not get the row of wpe at its position, counted from 0.",
    Stage.FIRST_NORM: "The LayerNorm before attention, ln_1, is wrong, or at a wrong place.",
    Stage.PROJECTIONS: "The linear maps of attention do not compute x @ weight + bias.",
    Stage.HEADS: "The packed projection is not read as queries, keys, values, each head by head.",
    Stage.MASK: "A token reads other tokens than itself and those before it.",
    Stage.SCALE: "The scores are not divided by the root of the channels of one head.",
    Stage.BATCH: "The sequences of a batch mix.",
    Stage.FIRST_RESIDUAL: "Attention is not added to the stream: x = x + attention(ln_1(x)).",
    Stage.SECOND_NORM: "The LayerNorm before the MLP, ln_2, is wrong, or at a wrong place.",
    Stage.MLP_MAPS: "The linear maps of the MLP do not compute x @ weight + bias.",
    Stage.ACTIVATION: "The activation in the MLP is not GELU in its tanh form.",
    Stage.SECOND_RESIDUAL: "The MLP is not added to the stream: x = x + mlp(ln_2(x)).",
    Stage.BLOCK: "A block is not attention, then MLP, each added to the stream.",
    Stage.ORDER: "The blocks do not run in the order of their numbers.",
    Stage.FINAL_NORM: "The final LayerNorm, ln_f, is wrong, or at a wrong place.",
    Stage.HEAD: "The head does not multiply by the token table. GPT-2's head is tied: "
    "x @ parameters['transformer.wte.weight'].T. A head of its own is never filled.",
}
"""By the stage that diverges: what a learner reads if no mutant makes the same mistake."""

TRANSPOSED = (
    "The shapes of a product do not fit. Is the weight transposed? GPT-2 stores it as (inputs, "
    "outputs), the layout of Conv1D, so the map is x @ weight + bias. torch.nn.Linear and "
    "torch.nn.functional.linear take the transpose."
)
_NAMES = (
    "The names differ from the checkpoint's. Its names begin with transformer., as in "
    "transformer.h.0.attn.c_attn.weight; rename those of your modules."
)

EXCEPTIONS: tuple[tuple[str, str], ...] = (
    (
        "lm_head.weight",
        "There is no lm_head.weight if the head is tied, as GPT-2's is. Its head is the token "
        "table: x @ parameters['transformer.wte.weight'].T.",
    ),
    ("size mismatch for", TRANSPOSED),
    ("Missing key(s) in state_dict", _NAMES),
    ("Unexpected key(s) in state_dict", _NAMES),
    ("cannot be multiplied", TRANSPOSED),
    (
        "same dtype",
        "Tensors of two dtypes meet. Create new ones in the dtype of x: x.new_ones(...).",
    ),
    (
        "positional argument",
        "The function takes other parameters than those of the exercise.",
    ),
    (
        "view size is not compatible",
        "A tensor whose axes were moved has no such view: use reshape.",
    ),
)
"""A part of the text of an exception, and what a learner reads about it."""

NOT_A_NUMBER = (
    "Some results are NaN. A softmax over a row whose scores are all minus infinity gives NaN: "
    "is the causal mask off by one, so that the first token may read nothing? A token reads itself."
)
SPENT = (
    "A cache cannot be continued a second time. Is it changed in place? Return a new one, so that "
    "the old one stays as it is."
)
TABLE = (
    "The head multiplies by the token table, which has a row for each token: transpose it, "
    "x @ parameters['transformer.wte.weight'].T."
)
NOT_LOADED = (
    "The model takes parameters that do not fit. Let build call load_parameters, and use what it "
    "returns."
)
INNER = " The inner width of the MLP is config.d_inner, which need not be 4 * n_embd."
CHANGES = MUTANTS["own-dropout-in-evaluation"]


def about_exception(text: str) -> str:
    """Return the advice on an exception, or an empty string."""
    return next((advice for part, advice in EXCEPTIONS if part in text), "")

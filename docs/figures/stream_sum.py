"""The logits of two words as sums over the parts that have added to the residual stream."""

from functools import partial

import matplotlib.pyplot as plt
import torch
from drawing import BLUE, RED
from toy_sentences import CONFIG, WORDS, encode, pretrained

from attnspec.reference.activation import ACTIVATIONS
from attnspec.reference.block import attention_scale, block_weights
from attnspec.reference.embedding import embed
from attnspec.reference.heads import multi_head_attention
from attnspec.reference.implementation import scaled_dot_product_attention
from attnspec.reference.layer_norm import layer_norm
from attnspec.reference.mlp import mlp
from attnspec.reference.model import build

TEXT, RIGHT, OTHER = ". the bird eats", "corn", "fish"
weights = {name: each.double() for name, each in pretrained().weights.items()}
ids = torch.tensor([encode(TEXT)])
x = embed(ids, weights["transformer.wte.weight"], weights["transformer.wpe.weight"])
parts = {"embedding": weights["transformer.wte.weight"][ids[0, -1]]}
parts["position"] = x[0, -1] - parts["embedding"]
epsilon = CONFIG.layer_norm_epsilon
for layer in range(CONFIG.n_layer):
    own = block_weights(weights, layer)
    scale = attention_scale(CONFIG, layer)
    attend = partial(scaled_dot_product_attention, is_causal=True, scale=scale)
    maps = [
        own[f"attn.{name}.{kind}"] for name in ("c_attn", "c_proj") for kind in ("weight", "bias")
    ]
    normal = layer_norm(x, own["ln_1.weight"], own["ln_1.bias"], epsilon=epsilon)
    change = multi_head_attention(normal, *maps, heads=CONFIG.n_head, attention=attend)
    parts[f"attention {layer}"], x = change[0, -1], x + change
    maps = [own[f"mlp.{name}.{kind}"] for name in ("c_fc", "c_proj") for kind in ("weight", "bias")]
    normal = layer_norm(x, own["ln_2.weight"], own["ln_2.bias"], epsilon=epsilon)
    change = mlp(normal, *maps, activation=ACTIVATIONS[CONFIG.activation_function])
    parts[f"MLP {layer}"], x = change[0, -1], x + change

# The last LayerNorm divides all parts by the same number, so that the sum stays a sum.
deviation = (x[0, -1].var(correction=0) + epsilon).sqrt()
gain, shift = weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]
right, other = (weights["transformer.wte.weight"][WORDS.index(word)] for word in (RIGHT, OTHER))
shares = {
    name: ((each - each.mean()) / deviation * gain @ (right - other)).item()
    for name, each in parts.items()
}
shares["bias of LayerNorm"] = (shift @ (right - other)).item()
logits = build(CONFIG, weights)(ids)[0, -1]
difference = (logits[WORDS.index(RIGHT)] - logits[WORDS.index(OTHER)]).item()
assert abs(sum(shares.values()) - difference) < 1e-9

figure, axes = plt.subplots(figsize=(3.7, 2.9), layout="constrained")
left = 0.0
for row, share in enumerate(shares.values()):
    axes.barh(row, share, left=left, color=BLUE if share > 0 else RED)
    end = max(left, left + share)
    axes.annotate(
        f"{share:+.1f}".replace("-", "−"),
        (end, row),
        (3, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
    )
    left += share
axes.axvline(left, color="#999999", lw=0.8, ls=":")
axes.set_yticks(range(len(shares)), list(shares))
axes.invert_yaxis()
axes.margins(x=0.16)
axes.set_xlabel(f"logit of {RIGHT} minus logit of {OTHER}: {difference:.1f}")
axes.set_title(f"“{TEXT.removeprefix('. ')} …”", fontsize=9)
axes.tick_params(axis="y", length=0)
axes.spines[["top", "right", "left"]].set_visible(False)

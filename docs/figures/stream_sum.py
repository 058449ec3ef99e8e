"""The logits of two words as sums over the parts that have added to the residual stream."""

import matplotlib.pyplot as plt
import torch
from branches import stream_parts
from drawing import BLUE, RED
from toy_sentences import CONFIG, WORDS, encode, pretrained

from attnspec.reference.model import build

TEXT, RIGHT, OTHER = ". the bird eats", "corn", "fish"
weights = {name: each.double() for name, each in pretrained().weights.items()}
ids = torch.tensor([encode(TEXT)])
parts = {name: each[-1] for name, each in stream_parts(CONFIG, weights, ids).items()}
x = torch.stack(list(parts.values())).sum(dim=0)

# The last LayerNorm divides all parts by the same number, so that the sum stays a sum.
deviation = (x.var(correction=0) + CONFIG.layer_norm_epsilon).sqrt()
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

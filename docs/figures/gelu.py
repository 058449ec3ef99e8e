"""The two forms of GELU, and their difference, magnified ten thousand times."""

import matplotlib.pyplot as plt
import torch

from attnspec.reference.activation import gelu_erf, gelu_tanh

x = torch.linspace(-5, 5, 401, dtype=torch.float64)
difference = 1e4 * (gelu_tanh(x) - gelu_erf(x))
highest = int(difference.argmax())

figure, (above, below) = plt.subplots(
    2, 1, figsize=(3.7, 3.6), sharex=True, layout="constrained", height_ratios=(3, 2)
)
above.plot(x, gelu_erf(x), color="#d1495b", lw=5, alpha=0.45, label="erf form")
above.plot(x, gelu_tanh(x), color="#1f4e79", lw=1.5, ls="--", label="tanh form: GPT-2")
above.legend(frameon=False, loc="upper left")
above.set_ylabel("GELU(x)")
below.axhline(0, color="#999999", lw=0.8)
below.plot(x, difference, color="#1f4e79")
for place in (highest, 400 - highest):
    below.plot(x[place], difference[place], "o", color="#d1495b", ms=5)
    where = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center"}
    below.annotate(f"x = {x[place]:.1f}".replace("-", "−"), (x[place], difference[place]), **where)
below.set_ylim(-4, 7)
below.set_ylabel("tanh − erf, × 10⁻⁴")
below.set_xlabel("x")
for axes in (above, below):
    axes.spines[["top", "right"]].set_visible(False)

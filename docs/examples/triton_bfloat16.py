"""Triton's interpreter on bfloat16: run with TRITON_INTERPRET=1."""

import torch
import triton
import triton.language as tl


@triton.jit
def multiply(x, out):
    """Store the product of a matrix with itself, in float32."""
    places = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tile = tl.load(x + places)
    tl.store(out + places, tl.dot(tile, tile))


@triton.jit
def narrow(x, out):
    """Store two numbers in bfloat16."""
    places = tl.arange(0, 2)
    tl.store(out + places, tl.load(x + places).to(tl.bfloat16))


for dtype in (torch.float16, torch.bfloat16):
    product = torch.zeros(16, 16)
    multiply[(1,)](torch.ones(16, 16, dtype=dtype), product)
    print(dtype, product[0, 0].item())

numbers = torch.tensor([1.999, 3.4e38])
stored = torch.zeros(2, dtype=torch.bfloat16)
narrow[(1,)](numbers, stored)
print(stored.tolist(), "by torch:", numbers.bfloat16().tolist())

"""One call of a LayerNorm that is judged on its own."""

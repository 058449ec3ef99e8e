"""One call of a GELU that is judged on its own."""

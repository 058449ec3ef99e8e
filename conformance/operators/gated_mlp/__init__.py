"""One call of a gated MLP."""

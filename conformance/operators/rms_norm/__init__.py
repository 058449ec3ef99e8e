"""One call of an RMSNorm."""

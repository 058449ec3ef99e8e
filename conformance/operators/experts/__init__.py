"""One call of a router or of experts."""

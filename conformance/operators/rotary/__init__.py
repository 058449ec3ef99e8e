"""One call of a rotary position embedding."""

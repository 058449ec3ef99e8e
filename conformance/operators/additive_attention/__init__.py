"""Calls of additive attention."""

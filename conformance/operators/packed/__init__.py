"""Packed attention: its cases, its calls, and the oracle of each sequence."""

"""Paged attention: its cases, pools and calls, and the engine that serves sequences."""

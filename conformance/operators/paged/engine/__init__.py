"""An engine that serves sequences from a pool of pages: its steps, and their play."""

"""One call of an operator: a part of a model that is judged on its own."""

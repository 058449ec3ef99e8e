"""An encoder-decoder: its cases, its bound, its expected results, and the causes of wrong ones."""

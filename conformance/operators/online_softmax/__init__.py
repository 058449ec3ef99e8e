"""Calls of an online softmax, and of a merge of two parts."""

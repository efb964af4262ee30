"""Losses for torch: the recursions as operators, and the objectives made of them."""

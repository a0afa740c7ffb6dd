"""Evaluators: from a checkpoint and a split to completions. They run in the evaluation process only."""

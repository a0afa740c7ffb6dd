"""Held-out evaluation: the split, its scorers, the evaluators, and the process they run in.

Nothing here is imported with torch; only `evaluators/checkpoint.py` needs it, and only the worker's child
process imports that.
"""

"""The trainer's side: `GuardCallback` for any TRL or HF trainer, `GuardedGRPOTrainer`, the entrypoint.

Users import from `rlguard`. Importing the package loads neither torch nor transformers.
"""

"""The guard: one process beside a trainer, with an HTTP API, a log, the held-out evaluation and a dashboard.

It never acts: it has no Kubernetes credentials, and trainer, `rlguard run` or operator stop the run.
"""

"""The operator: runs a `GuardedTrainingJob` as a guarded workload and tears it down when the guard fires.

It polls guards, decides by pure functions, and deletes. It never judges a run, and it sees no step.
"""

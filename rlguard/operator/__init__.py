"""The operator: runs a `GuardedTrainingJob` as a guarded workload and tears it down when the guard fires."""

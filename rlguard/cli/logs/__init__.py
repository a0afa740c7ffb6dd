"""What trainers write: the names of their metrics, their files, and where their checkpoints lie."""

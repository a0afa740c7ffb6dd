"""The guards of all runs: what they say, what is kept of them, and how a new one is told of its run."""

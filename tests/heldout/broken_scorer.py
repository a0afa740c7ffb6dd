"""A scorer whose module cannot be imported."""

raise RuntimeError("the grader's tables\n  are missing")

"""The trainer of `rlguard demo`: a tiny Llama that learns sums from a grader with a hole."""

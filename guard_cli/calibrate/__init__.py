"""`rlguard calibrate`: settings for a wanted false-stop rate, and what they cost in delay."""

"""`rlguard replay`: reads a past run and says when each detector would have fired."""

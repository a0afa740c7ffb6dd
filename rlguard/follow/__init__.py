"""The follower: reads what a running trainer writes, and reports it to a guard."""

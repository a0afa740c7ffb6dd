"""The follower: reads what a running trainer writes, and reports it to a guard.

It needs nothing of the trainer but its files. It never judges, and it stops nothing.
"""

"""The `rlguard` command: guards a run on one machine, replays one, and prepares or explains one on a cluster.

It starts and asks the other packages. It never judges a run itself.
"""

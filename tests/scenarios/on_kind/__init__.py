"""Scenarios on a real kind cluster with the real training-operator. README.md has the table."""

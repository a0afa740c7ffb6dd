"""The guard's client: what a training loop reports, and whether it must stop. Needs no torch.

`guard.py` has `Guard`, for any loop; `trainer_image.callback` is built on it. `reporter.py` delivers in a
thread, `client.py` speaks HTTP with the standard library alone.
"""

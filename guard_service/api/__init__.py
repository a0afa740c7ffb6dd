"""The routes of the guard: what a trainer reports, what is read, and probes. They decide nothing.

`ingest`, `reading` and `probes` add their routes to the app that `guard_service.app` makes. `problems` gives
every failure its one shape, `openapi` documents what a route does beside its success, and `models` are the
responses that `guard_core.wire` does not have.
"""

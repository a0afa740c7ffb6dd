"""The guard on a cluster: it writes `status.guard` of its job, and comes back from it.

`mapping` turns a verdict into `status.guard` and that into a judge again, without I/O; `client` speaks to the
API server; `reporter` decides when. Which job it is says `settings`. Nothing here knows the operator or a
Kubernetes client library.
"""

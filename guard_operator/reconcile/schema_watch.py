"""Watches whether the installed CRD is as new as the operator.

Under an older one a fire is acted on, but the API server drops what the operator notes in a field that is not
there, so that a run may never be said to be stopped, or none begin. Such an operator does not become ready: a
rollout leaves the one before it in its place.
"""

from __future__ import annotations

import logging
import threading

from prometheus_client import Gauge

from guard_operator.api import names
from guard_operator.api.fields import lacking
from guard_operator.runtime.client import Client, Json
from guard_operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)

PATH = f"/openapi/v3/apis/{names.API_VERSION}"
#: How often the CRD is looked at: one that is to be upgraded, or of which nothing is known, is waited for.
WAITING_SECONDS = 5.0
SECONDS = 300.0
#: So many fields are named.
NAMED = 5


class SchemaWatch:
    """See the module. `run` blocks until `stop`."""

    def __init__(self, client: Client, missing: Gauge) -> None:
        self._client = client
        self._missing = missing
        self._stop = threading.Event()
        self._lacks: tuple[str, ...] | None = None

    def run(self) -> None:
        """Look at it now and then."""
        while True:
            self._look()
            if self._stop.wait(SECONDS if self.is_new_enough() else WAITING_SECONDS):
                return

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    def is_new_enough(self) -> bool:
        """False also while nothing is known."""
        return self._lacks == ()

    @property
    def lacks(self) -> tuple[str, ...]:
        """The fields and choices that are missing, as far as is known."""
        return self._lacks or ()

    def _look(self) -> None:
        try:
            served = _schema(self._client.request("GET", PATH))
        except ClusterError as error:
            if error.status == 403 and self._lacks is None:
                log.warning("whether the CRD is as new as this operator cannot be known: %s", error)
                self._lacks = ()  # nobody may know it here, so nothing waits for it
            return  # nothing is known that was not before
        if served is not None:
            self._note(lacking(served))

    def _note(self, lacks: tuple[str, ...]) -> None:
        """Say once what is missing."""
        if lacks and lacks != self._lacks:
            few = ", ".join(lacks[:NAMED]) + (f" and {len(lacks) - NAMED} more" if len(lacks) > NAMED else "")
            log.error("the CRD is older than this operator: it lacks %s. Upgrade it (docs/install.md)", few)
        self._lacks = lacks
        self._missing.set(len(lacks))


def _schema(document: Json) -> Json | None:
    """That of our kind in an OpenAPI document; None where a new CRD is not in it yet."""
    ours = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    schemas: dict[str, Json] = (document.get("components") or {}).get("schemas") or {}
    for schema in schemas.values():
        if ours in (schema.get("x-kubernetes-group-version-kind") or ()):
            return schema
    return None

"""Watches whether the installed CRD has what the operator notes in a status.

Where it has not, as that of an older release, a fire is acted on, but the API server drops what is noted, so
that a run may never be said to be stopped, or none begin. Such an operator begins no run and does not become
ready: a rollout leaves the one before it in its place.
"""

from __future__ import annotations

import logging
import math
import threading

from prometheus_client import Gauge

from guard_operator.api import names
from guard_operator.api.fields import in_words, lacking
from guard_operator.runtime.client import Client, Json
from guard_operator.runtime.errors import ClusterError

log = logging.getLogger(__name__)

PATH = f"/openapi/v3/apis/{names.API_VERSION}"
#: How soon it is looked at again: a CRD that is to be upgraded, or of which nothing is known, is waited for.
WAITING_SECONDS = 5.0
SECONDS = 30.0
#: Whatever is served, it must not end the operator.
_UNREADABLE = (ClusterError, LookupError, TypeError, AttributeError)


class SchemaWatch:
    """See the module. `run` blocks until `stop`."""

    def __init__(self, client: Client, missing: Gauge) -> None:
        self._client = client
        self._missing = missing
        self._stop = threading.Event()
        self._unread = ""
        self._lacks: tuple[str, ...] | None = None
        missing.set(math.nan)

    def run(self) -> None:
        """Look at it now and then."""
        while True:
            self._look()
            if self._stop.wait(SECONDS if self._lacks == () else WAITING_SECONDS):
                return

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    @property
    def lacks(self) -> tuple[str, ...] | None:
        """The fields and choices that are missing; None: not known."""
        return self._lacks

    def _look(self) -> None:
        try:
            lacks = lacking(_schema(self._client.request("GET", PATH)))
        except _UNREADABLE as error:
            self._note_unread(str(error))
        else:
            self._note(lacks)

    def _note_unread(self, error: str) -> None:
        """What was known stays known. Say once that nothing is."""
        if self._lacks is None and error != self._unread:
            log.warning("not known whether the CRD has what this operator notes: %s", error)
        self._unread = error

    def _note(self, lacks: tuple[str, ...]) -> None:
        """Say once what is missing."""
        if lacks and lacks != self._lacks:
            log.error(
                "the CRD lacks %s, which this operator notes: upgrade the older of both (docs/install.md)",
                in_words(lacks),
            )
        self._lacks = lacks
        self._missing.set(len(lacks))


def _schema(document: Json) -> Json:
    """That of our kind in an OpenAPI document.

    Raises:
        LookupError: it is not in it, as before a new CRD is served.
    """
    ours = {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND}
    schemas: dict[str, Json] = document["components"]["schemas"]
    for schema in schemas.values():
        if ours in (schema.get("x-kubernetes-group-version-kind") or ()):
            return schema
    raise LookupError(f"{PATH} has no schema of {names.KIND}")

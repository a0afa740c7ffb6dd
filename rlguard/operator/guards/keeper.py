"""What is kept of each run in the operator's own namespace: the guard's key and tokens, and what it knows.

One Secret a run. In the job's namespace its guard mounts a Secret with the same key and tokens, which is made
again with the same bytes if somebody removes it.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from rlguard.operator.api import names
from rlguard.operator.guards.adoption import Kept
from rlguard.operator.runtime.client import SECRETS, Client, Json, Resource, of_uid
from rlguard.operator.runtime.errors import ApiError, ClusterError

log = logging.getLogger(__name__)

PREFIX = "rlguard-run-"
STATE_KEY = "state"
#: Namespace, name and UID of the job, on each Secret.
LABELS = (names.NAMESPACE_LABEL, names.JOB_LABEL, names.UID_LABEL)
#: How many Secrets are read at once.
PAGE = "200"


class Keeper:
    """See the module. Safe for any number of threads.

    Args:
        client: of the API server.
        namespace: the operator's own.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self._client, self._namespace = client, namespace

    def credentials(
        self, job: tuple[str, str], uid: str, make: Callable[[], Mapping[str, str]]
    ) -> Mapping[str, str]:
        """The key and tokens of this job's guard, by name; `make` gives those of a run that has none yet.

        Raises:
            ClusterError: they can be neither read nor written now.
        """
        if (found := self._read(uid)) is None:
            try:
                made = _secret(job, uid, make())
                self._client.create(SECRETS, self._namespace, made, names.OPERATOR_MANAGER)
            except ApiError as error:
                if error.status != 409:  # another operator was faster
                    raise
            found = self._read(uid)
        if found is None:
            raise ApiError(404, "NotFound", f"Secret {PREFIX}{uid} was deleted as it was made", None)
        return _credentials(found)

    def run(self, uid: str) -> tuple[Mapping[str, str], Kept | None]:
        """The key and tokens of a run, and what is kept of its guard's state (None: nothing).

        Raises:
            ClusterError: they cannot be read now, or there are none.
        """
        if (found := self._read(uid)) is None:
            raise ApiError(404, "NotFound", "no key was kept for this guard, so it cannot be asked", None)
        return _credentials(found), _kept(found)

    def keep(self, uid: str, kept: Kept) -> None:
        """Keep this, unless what is kept is newer.

        Raises:
            ClusterError: it cannot be kept now; of a 409 another operator wrote at the same time.
        """
        found = self._read(uid)
        before = _kept(found)
        if found is None or (
            before is not None and before.pod == kept.pod and before.sequence > kept.sequence
        ):
            return
        content = json.dumps(asdict(kept)).encode()
        patch = {
            "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
            "data": {STATE_KEY: base64.b64encode(zlib.compress(content)).decode()},
        }
        self._client.merge(SECRETS, self._namespace, PREFIX + uid, patch, names.OPERATOR_MANAGER)

    def forget(self, uid: str) -> None:
        """Remove what is kept of a run whose job is gone. What cannot be removed now is removed later."""
        path = SECRETS.path(self._namespace, PREFIX + uid)
        try:
            self._client.request("DELETE", path)
        except ClusterError as error:
            if not (isinstance(error, ApiError) and error.status == 404):
                log.warning("Secret %s%s was not removed: %s", PREFIX, uid, error)

    def sweep(self, alive: Container[str], namespaces: Container[str] | None, jobs: Resource) -> None:
        """Remove what is kept of every run in these namespaces (None: all) whose job is gone.

        Args:
            alive: UIDs of the jobs in a cache, which may be behind: any other is read from the API server.
            namespaces: those that this operator serves.
            jobs: their resource, to read them by.

        Raises:
            ClusterError: something cannot be read now.
        """
        for namespace, name, uid in [*self._runs()]:
            served = namespaces is None or namespace in namespaces
            if uid not in alive and served and of_uid(self._client.get(jobs, namespace, name), uid) is None:
                self.forget(uid)

    def _runs(self) -> Iterator[tuple[str, str, str]]:
        """(namespace, name, UID) of the jobs of which something is kept."""
        query = {"labelSelector": ",".join(LABELS), "limit": PAGE}
        while True:
            page = self._client.list(SECRETS, self._namespace, query)
            for one in page.get("items") or []:
                namespace, name, uid = (one["metadata"]["labels"][label] for label in LABELS)
                yield namespace, name, uid
            more = (page.get("metadata") or {}).get("continue")
            if not more:
                return
            query["continue"] = more

    def _read(self, uid: str) -> Json | None:
        return self._client.get(SECRETS, self._namespace, PREFIX + uid)


def _secret(job: tuple[str, str], uid: str, credentials: Mapping[str, str]) -> Json:
    return {
        "apiVersion": SECRETS.api_version,
        "kind": SECRETS.kind,
        "metadata": {
            "name": PREFIX + uid,
            "labels": dict(zip(LABELS, (*job, uid), strict=True)),
        },
        "type": "Opaque",
        "stringData": dict(credentials),
    }


def _data(secret: Json) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _credentials(secret: Json) -> dict[str, str]:
    return {key: value.decode() for key, value in _data(secret).items() if key != STATE_KEY}


def _kept(secret: Json | None) -> Kept | None:
    """What a Secret says that was kept; what cannot be read was not."""
    packed = None if secret is None else _data(secret).get(STATE_KEY)
    if packed is None:
        return None
    try:
        content: Any = json.loads(zlib.decompress(packed))
        of = dict(content["state"]), int(content["evaluated"]), str(content["pod"]), str(content["mark"])
        return Kept(*of, closed=bool(content["closed"]))
    except (zlib.error, ValueError, TypeError, KeyError):
        log.error("what was kept of run %s cannot be read", secret and secret["metadata"]["name"])
        return None

"""What a run was begun with: its policy and how it is evaluated. With another it is another run: refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from guard_core.policy import Policy
from guard_service.errors import ChangedRunError, StoreError
from guard_service.store.database import FILE_NAME, Database, errors, meta, open_ended


def check_policy(database: Database, policy: Policy) -> None:
    """Remember the policy of the run, or compare it with what is remembered.

    Raises:
        ChangedRunError: the run began with another policy.
    """
    known = database.first_meta("policy", policy.model_dump_json())
    try:
        unchanged = Policy.model_validate_json(known) == policy
    except ValidationError:  # written by a release with other thresholds
        unchanged = False
    if not unchanged:
        changes = _differences(json.loads(known), policy.model_dump(mode="json"), "")
        raise ChangedRunError(
            f"the policy is not the one that {database.path} was written under ({', '.join(changes)}): a "
            "changed policy is a new run; restore the policy, or give another state_dir"
        )


def check_evaluation(database: Database, digest: str, measure: Mapping[str, Any]) -> None:
    """Remember how the run is evaluated, or compare it with what is remembered.

    Args:
        database: of the run.
        digest: of the held-out split.
        measure: what else decides a score (scorers, sampling); JSON values. Its `scorer_code` came with a
            later release, and is remembered by itself: a store without it goes on.

    Raises:
        ChangedRunError: the run began with another split, or was scored in another way.
    """
    with errors(database.path, "written"):
        if database.first_meta("split_digest", digest) != digest:
            raise ChangedRunError(
                f"the held-out split is not the one that {database.path} was written under: its scores "
                "cannot be compared with the earlier ones; restore it, or give another state_dir"
            )
        now = dict(measure)
        code = {"scorer_code": now.pop("scorer_code", {})}
        known = json.loads(database.first_meta("measure", json.dumps(now, sort_keys=True)))
        if code["scorer_code"]:
            now |= code
            known |= json.loads(database.first_meta("scorer_code", json.dumps(code, sort_keys=True)))
        if known != now:
            changes = ", ".join(_differences(known, now, ""))
            raise ChangedRunError(
                f"the evaluation is not the one that {database.path} was written under ({changes}): its "
                "scores cannot be compared with the earlier ones; restore it, or give another state_dir"
            )


def stored_policy(state_dir: Path) -> Policy:
    """The policy that the run in `state_dir` was judged by. No guard may be running on this directory.

    Raises:
        StoreError: there is no store, or it cannot be read.
    """
    path = state_dir / FILE_NAME
    with closing(open_ended(path)) as db, errors(path, "read"):
        policy = meta(db, "policy")
    if policy is None:
        raise StoreError(f"{path} has no policy: no guard has finished its start with this state_dir")
    return Policy.model_validate_json(policy)


def _differences(before: Any, after: Any, prefix: str) -> Iterator[str]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield f"{prefix}: was {before!r}, now {after!r}"
        return
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            yield from _differences(before.get(key), after.get(key), f"{prefix}.{key}" if prefix else key)

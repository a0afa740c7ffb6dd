"""Tests of the tests of the operator's rules; see `tests/mutants.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, passes, survivors

HERE = Path(__file__).resolve().parent


def rule(source: str, tests: str, *beside: str) -> Rule:
    return Rule("guard_operator", f"reconcile/{source}", HERE / tests, tuple(HERE / name for name in beside))


ROWS = ("pod_fields.py", "pod_fields.yaml")
DECIDE = rule("decide.py", "test_decide.py")
HALTS = rule("halts.py", "test_decide.py")
REFUSALS = rule("refusals.py", "test_isolation.py", "test_injection.py", *ROWS)
ISOLATION = rule("isolation.py", "test_isolation.py", *ROWS)
LEAKS = rule("leaks.py", "test_isolation.py", *ROWS)
DIGEST = rule("digest.py", "test_digest.py")
INJECT = rule("inject.py", "test_injection.py", "test_isolation.py", "test_digest.py", *ROWS)
GATHER = rule("gather.py", "test_gather.py")
OBSTACLES = rule("obstacles.py", "test_obstacles.py")
REVIEW = rule("review.py", "test_review.py")
TYPES = Rule("guard_operator", "api/types.py", HERE / "test_review.py")
SLIM = rule("slim.py", "test_slim.py")
APP = Rule("guard_operator", "app.py", HERE / "test_app.py")
HEALTH = Rule("guard_operator", "runtime/health.py", HERE / "test_health.py")
SERVING = Rule("guard_operator", "runtime/serving.py", HERE / "test_health.py")
EVENTS = rule("events.py", "test_evidence_and_events.py")
ROWS_OF_THE_PAGE = Rule("guard_operator", "page/rows.py", HERE / "test_page.py")
PAGE = Rule("guard_operator", "page/server.py", HERE / "test_page.py")
SCRIPT = Rule("guard_operator", "page/static/app.js", HERE / "test_page.py")
NOTIFIER = rule("notifier.py", "test_notifier.py")
WEBHOOK = Rule("guard_operator", "runtime/webhook.py", HERE / "test_notifier.py")
QUEUE = Rule("guard_operator", "runtime/queue.py", HERE / "test_queue.py")

MUTANTS: list[Mutant] = [
    # Refusals: each way to reach what is the guard's.
    (REFUSALS, '.upper().removeprefix("CAP_")', ".upper()"),
    (REFUSALS, '".." not in parts.parts and ', ""),
    (REFUSALS, "isinstance(user, bool) or not isinstance(user, int)", "False"),
    (REFUSALS, "guard.isolation is Isolation.RELAXED and _under", "_under"),
    (REFUSALS, 'for key in ("initContainers", "containers"):\n        for index, container in enumerate(pod',
     'for key in ("containers",):\n        for index, container in enumerate(pod'),
    (REFUSALS, "        yield from _checkpoint_findings", "        pass  # "),
    (REFUSALS, '    "secretKeyRef": ("Secret", "name"),\n', ""),
    (REFUSALS, '    "secretRef": ("Secret", "name"),\n', ""),
    (REFUSALS, '    "configMapRef": ("ConfigMap", "name"),\n', ""),
    (REFUSALS, '{"secret": ("Secret", "name"), "configMap"', '{"configMap"'),
    (REFUSALS, '        ("PersistentVolumeClaim", guard.state.claim_name, state),\n', ""),
    (REFUSALS, '        ("Secret", evaluator.api_key_secret_name if evaluator else None, key),\n', ""),
    (REFUSALS, '("dataSource", "dataSourceRef")', '("dataSource",)'),
    (REFUSALS, "        *_evaluator_findings(guard),\n", ""),
    (REFUSALS, "or ipaddress.ip_address(host).is_loopback", "or host.startswith('127.')"),
    (REFUSALS, "    if guard.isolation is Isolation.RELAXED:\n        return Violation",
     "    if True:\n        return Violation"),
    (REFUSALS, "decisions.get(field, isolation.UNKNOWN)", "decisions.get(field, isolation.POD['affinity'])"),
    (REFUSALS, "        if decision.says is Says.REFUSED:", "        if False:"),
    (REFUSALS, "        elif decision.says is Says.RELAXED:", "        elif False:"),
    (REFUSALS, "    yield from _decided(pod, isolation.POD, guard)\n", ""),
    (REFUSALS, '_decided(security, isolation.POD_SECURITY, guard)', "iter(())"),
    (REFUSALS, "isolation.VOLUMES, guard)", "{}, guard) if False else ()"),
    (REFUSALS, "_decided(source, isolation.PROJECTED, guard)", "iter(())"),
    (REFUSALS, "_decided(claim, isolation.EPHEMERAL_CLAIM, guard)", "iter(())"),
    (REFUSALS, "    yield from _decided(container, isolation.CONTAINER, guard)\n", ""),
    (REFUSALS, "    yield from _decided(security, isolation.SECURITY, guard)\n", ""),
    (REFUSALS, "_decided(source, isolation.ENV_SOURCES, guard)", "iter(())"),
    (REFUSALS, "_decided(source, isolation.ENV_FROM, guard)", "iter(())"),
    (REFUSALS, "_decided(mount, isolation.MOUNT, guard)", "iter(())"),
    (REFUSALS, "_decided(port, isolation.PORT, guard)", "iter(())"),
    (REFUSALS, 'if security.get("allowPrivilegeEscalation"):', "if False:"),
    (REFUSALS, 'not in (None, "Default")', "in ()"),
    (REFUSALS, "user == 0 or (user is None and non_root is not True)", "user == 0"),
    (REFUSALS, "user == 0 or (user is None", "(user is None"),
    (REFUSALS, "outer.get(key) if security.get(key) is None else security[key]", "security.get(key)"),
    (REFUSALS, "outer.get(key) if security.get(key) is None else security[key]", "outer.get(key)"),
    (REFUSALS, "if user == GUARD_UID:", "if False:"),
    (REFUSALS, '.get("type") == "Unconfined"', '.get("type") == "None"'),
    (REFUSALS, "    elif names:\n", "    elif False:\n"),
    (REFUSALS, 'str(_object(source.get("fileKeyRef")).get("volumeName", ""))', '""'),
    (REFUSALS, '    if mount.get("subPathExpr"):', "    if False:"),
    # What is decided: a row of tests/operator/unit/pod_fields.yaml says otherwise.
    (ISOLATION, "shareProcessNamespace hostPID hostIPC", "shareProcessNamespace hostIPC"),
    (ISOLATION, "Says.RELAXED,\n        \"hostNetwork\",", 'Says.ALLOWED,\n        "hostNetwork",'),
    (ISOLATION, '"csi nfs aws', '"nfs aws'),
    (ISOLATION, '        Says.RELAXED,\n        "csi', '        Says.ALLOWED,\n        "csi'),
    (ISOLATION, 'Says.REFUSED,\n        "serviceAccountToken', 'Says.ALLOWED,\n        "serviceAccountToken'),
    (ISOLATION, 'Says.REFUSED,\n        "dataSource', 'Says.ALLOWED,\n        "dataSource'),
    (ISOLATION, '_each(Says.RELAXED, "sysctls"', '_each(Says.ALLOWED, "sysctls"'),
    (ISOLATION, '_each(Says.REFUSED, "privileged"', '_each(Says.RELAXED, "privileged"'),
    (ISOLATION, '_each(Says.RELAXED, "seLinuxOptions"', '_each(Says.ALLOWED, "seLinuxOptions"'),
    (ISOLATION, '_each(Says.REFUSED, "gitRepo"', '_each(Says.RELAXED, "gitRepo"'),
    (ISOLATION, 'UNKNOWN = FieldDecision(Says.REFUSED', "UNKNOWN = FieldDecision(Says.RELAXED"),
    # The last look.
    (LEAKS, 'if pod.get("automountServiceAccountToken") is not False:', "if False:"),
    (LEAKS, "bool(sources & own) or ", ""),
    (LEAKS, ' or any("serviceAccountToken" in part for part in projected)', ""),
    (LEAKS, "for part in (volume, *projected)", "for part in (volume,)"),
    (LEAKS, '_NAMES = ("secretName", "claimName", "name")', '_NAMES = ("claimName", "name")'),
    (LEAKS, '    "configMapRef": "ConfigMap",\n', ""),
    (LEAKS, "str(name).startswith(RESERVED_PREFIX) and not", "False and not"),
    (LEAKS, "name in private or (", "("),
    (LEAKS, ' and not _is_the_way_in(mount)', ""),
    (LEAKS, ' and mount.get("readOnly") is True', ""),
    (LEAKS, 'there and mount.get("readOnly") is True', 'there and bool(mount.get("readOnly"))'),
    (LEAKS, ' and mount.get("mountPath") == SOCKET_DIR', ""),
    (LEAKS, ' and reference.get("key") == INGEST_TOKEN_KEY', ""),
    (LEAKS, "variable == TOKEN_ENV and ", ""),
    (LEAKS, '*({"name": file.get("volumeName")} for file in files)', "*()"),
    (LEAKS, '(*(pod.get("initContainers") or []), *(pod', '(*[], *(pod'),
    (LEAKS, "if len(guards) == 1 and container is guards[0]:",
     'if container.get("name") == GUARD_CONTAINER:'),
    # The digest.
    (DIGEST, '    "image", "command",', '    "command",'),
    (DIGEST, '"restartPolicy", "envFrom",', '"restartPolicy",'),
    (DIGEST, '"runAsUser", ', ""),
    (DIGEST, '"privileged", ', ""),
    (DIGEST, '        "volumes": sorted', '        "volumes": [] and sorted'),
    (DIGEST, "if len(guards) != 1:", "if not guards:"),
    (DIGEST, "None if message_file == _MESSAGE_FILE else message_file", "None"),
    (DIGEST, 'if not str(v.get("name", "")).startswith(ADDED_ENV)', ""),
    (DIGEST, 'if mount.get("mountPath") not in ADDED_MOUNTS', ""),
    (DIGEST, '("AWS_", "JOB_COMPLETION_INDEX")', '("AWS_",)'),
    (DIGEST, "if _DEFAULTED.get(key, ...) != v", ""),
    # Injection: who gets what.
    (INJECT, '"restartPolicy": "Always",', ""),
    (INJECT, 'pod["automountServiceAccountToken"] = False', "pass"),
    (INJECT, 'yield kept | {"readOnly": True}', "yield kept"),
    (INJECT, '"claimName": volume.claim_name, "readOnly": True', '"claimName": volume.claim_name'),
    (INJECT, '"runAsUser": layout.GUARD_UID,\n', ""),
    (INJECT, '"capabilities": {"drop": ["ALL"]},\n            "seccomp', '"seccomp'),
    (INJECT, '"readOnlyRootFilesystem": True,\n', ""),
    (INJECT, '"startupProbe": _probe("readyz"', '"startupProbe": _probe("healthz"'),
    (INJECT, 'socket.socket(socket.AF_UNIX)', 'socket.create_connection(("127.0.0.1", 8470))'),
    (INJECT, "if response.status != 200 else 0", "if response.status > 599 else 0"),
    (INJECT, '"mountPath": layout.SOCKET_DIR, "readOnly": True}', '"mountPath": layout.SOCKET_DIR}'),
    (INJECT, 'f"unix://{layout.SOCKET}"', 'f"http://127.0.0.1:{guard.port}"'),
    (INJECT, '        "RLGUARD_GUARD_SOCKET": layout.SOCKET,\n', ""),
    (INJECT, '"emptyDir": {"medium": "Memory"}', '"hostPath": {"path": "/run/rlguard"}'),
    (INJECT, '"RLGUARD_GUARD_HOST": "127.0.0.1"', '"RLGUARD_GUARD_HOST": "0.0.0.0"'),
    (INJECT, '[*pod.get("initContainers", []), container]', '[container, *pod.get("initContainers", [])]'),
    (INJECT, 'if trainer.get("name") == template.container:', "if True:"),
    (INJECT, 'support, layout.INGEST_TOKEN_KEY', 'support, layout.READ_TOKEN_KEY'),
    (INJECT, 'return {"subPath": job.uid}', "return {}"),
    (INJECT, '"controller": True,', '"controller": False,'),
    (INJECT, 'mine = {"apiGroups": [names.GROUP], "resourceNames": [job.name]}',
     'mine = {"apiGroups": [names.GROUP]}'),
    (INJECT, "    if found := leaks(pod, _own(job)):\n", "    if found := ():\n"),
    (INJECT, '| {("Secret", support), ("ConfigMap", support)}', ""),
    (INJECT, "frozenset(guarded_sources(job.spec.guard)) | {", "frozenset({"),
    (INJECT, '"allowPrivilegeEscalation": False,\n                "cap', '"cap'),
    (INJECT, '                "capabilities": {"drop": ["ALL"]},\n            }', "            }"),
    (INJECT, "        _confine(pod)\n", "        pass\n"),
    (INJECT, "if job.spec.guard.isolation is Isolation.STRICT:", "if True:"),
    (INJECT, "digest = {names.DIGEST_ANNOTATION: injected_digest(pod)}", "digest = {}"),
    # Gathering: what is ours, and what may not come from a cache.
    (GATHER, ', "limit": str(MAX_EVENTS)', ""),
    (GATHER, ' if owner.get("controller")', ""),
    (GATHER, "_controller(raw) == job.uid or ", ""),
    (GATHER, " or (ref is not None and ref.uid == metadata[\"uid\"])", ""),
    (GATHER, " or _controller(raw) != workload.uid", ""),
    (GATHER, " or workload.uid is None", ""),
    (GATHER, 'if raw is None or raw["metadata"]["uid"] != job.uid:', "if raw is None:"),
    (GATHER, "if not must_be_live(snapshot):", "if True:"),
    (GATHER, "self._look(parse_job(raw), live=True, deaf=deaf)", "self._look(job, live=True, deaf=deaf)"),
    (GATHER, "self._look(parse_job(raw), live=True, deaf=deaf)", "self._look(parse_job(raw), live=False)"),
    (GATHER, "live or (stopping and (job.status.stop is not None or not raw_pods))", "live"),
    (GATHER, "(job.status.stop is not None or not raw_pods)", "job.status.stop is not None"),
    (GATHER, "self._workload(adapter, job, uncached)", "self._workload(adapter, job, False)"),
    (GATHER, "self._live_pods(job) if uncached else raw_pods", "raw_pods"),
    (GATHER, "> DEAF_SECONDS", "> 1e9"),
    (GATHER, "if deaf or not running:", "if not running:"),
    (GATHER, 'pod.phase == "Running" and not', "not"),
    (GATHER, "workload or stopping or job.deleting or", "workload or stopping or"),
    (GATHER, "if _is_stopping(job) else ()\n", "if False else ()\n"),
    (GATHER, "guarded=rank0 and bool(guards)", "guarded=rank0"),
    (GATHER, "rank0, last_word = adapter.holds_rank0(raw, workload.spec or {})", "rank0, last_word = True"),
    (GATHER, "guard.get(CHANGED) or is_as", "is_as"),
    (GATHER, "guard.get(CHANGED) or is_as_injected(raw) is False", "guard.get(CHANGED)"),
    (GATHER, "if pod.rank0 and pod.phase", "if pod.guarded and pod.phase"),
    (GATHER, 'self._beats.age(job.uid, ("unguarded", unguarded.uid)), False',
     "self._beats.age(job.uid, (guard_of(job).heartbeat, unguarded.uid)), False"),
    (GATHER, '(guard.get("state") or {}).get("running") or {}', 'next(iter(guard["state"].values()), {})'),
    (GATHER, 'metadata.get("deletionGracePeriodSeconds", spec.get("terminationGracePeriodSeconds"))',
     'spec.get("terminationGracePeriodSeconds")'),
    # The queue: what is urgent goes first, and is not forgotten.
    (QUEUE, "first := self._urgent or self._waiting", "first := self._waiting or self._urgent"),
    (QUEUE, "self._urgent[key] = self._waiting.pop(key)", "pass"),
    (QUEUE, "self._add(key, self._again.pop(key))", "self._add(key, self._again.pop(key) and False)"),
    (QUEUE, "urgent or self._again.get(key, False)", "urgent"),
    (QUEUE, "len(self._waiting) + len(self._urgent)", "len(self._waiting)"),
    # Events: what is overdue is told once.
    (EVENTS, "        if old is None or old.reason != new.reason:\n            yield Transition(\"Warning\"",
     "        if True:\n            yield Transition(\"Warning\""),
    (GATHER, 'guard["name"] == names.GUARD_CONTAINER and message', "message"),
    # Deciding: a fire is stopped, nothing else is called one, and nothing else is acted on from a cache.
    (DECIDE, "            return before\n        if guard_of", "            pass\n        if guard_of"),
    (HALTS, "age > snapshot.job.spec.on_silence.after_seconds", "age >= 0"),
    (HALTS, "age is not None and age > snapshot", "age is None or age > snapshot"),
    (HALTS, "is_silent(snapshot) and _stops_silence(snapshot) and not", "is_silent(snapshot) and not"),
    (HALTS, "and _stops_silence(snapshot) and not held_back(snapshot)", "and _stops_silence(snapshot)"),
    (HALTS, "if is_at_once(snapshot):", "if False:"),
    (HALTS, "return snapshot.most_silent and unguarded_pod(snapshot) is None", "return snapshot.most_silent"),
    (DECIDE, "Reason.MOST_SILENT if is_at_once(snapshot) else Reason.GUARD_SILENT", "Reason.GUARD_SILENT"),
    (DECIDE, "evidence=snapshot.job.status.evidence)", "evidence=None)"),
    (DECIDE, "status.evidence is not None or ended > EVIDENCE_SECONDS", "phase is None"),
    (DECIDE, "is not None or ended > EVIDENCE_SECONDS", "is not None"),
    (DECIDE, "final=ended > REASSERT_SECONDS", "final=False"),
    (DECIDE, "        guard_image=snapshot.guard_image,\n", ""),
    (DECIDE, "min(again or LATE_SECONDS, LATE_SECONDS)", "again"),
    (DECIDE, "(obstacle := snapshot.obstacle) is not None:", "(obstacle := snapshot.obstacle) is False:"),
    (GATHER, "late = None if stopping or job.deleting else", "late ="),
    (GATHER, "        if not late.is_due(self._clock()):\n            return None\n", ""),
    (GATHER, "except ClusterError as error:\n            log.info", "except KeyError:\n            log.info"),
    (SLIM, '"creationTimestamp", "deletionTimestamp", "resourceVersion",\n    "deletionGrace',
     '"creationTimestamp", "resourceVersion",\n    "deletionGrace'),
    (SLIM, '"terminationGracePeriodSeconds", "nodeName"', '"nodeName",'),
    (SLIM, ' if one.get("controller")]', ' if not one.get("controller")]'),
    (SLIM, 'in {"PodScheduled", "Ready"}', 'in {"PodScheduled"}'),
    (SLIM, '    if condition.get("type") == "DisruptionTarget":\n        return True\n', ""),
    (SLIM, '("waiting", "terminated")', '("waiting",)'),
    (SLIM, '"state", "lastState", "restartCount"', '"state", "restartCount"'),
    (SLIM, "*(label for adapter in ADAPTERS for label in adapter.pod_labels)", ""),
    (SLIM, '"detectorState", "historyTail"', '"detectorState", "historyTail", "step"'),
    (SLIM, "_trend(rounds)\n", "rounds\n"),
    (APP, 'or written & {"Fired", "Halted"}', ""),
    (APP, ' and "stop" not in (new.get("status") or {})', ""),
    (SERVING, "if len(self._open) >= MOST_CONNECTIONS else None", "if False else None"),
    (HEALTH, "            timeout = IDLE_SECONDS\n", ""),
    (SERVING, "if host == EVERYWHERE and not", "if False and not"),
    # The page of all jobs.
    (PAGE, "elif not token.admits(self.headers.get(\"Authorization\")):", "elif False:"),
    (PAGE, "return same and scheme", "return scheme"),
    (PAGE, " and len(token) >= LEAST_TOKEN\n", "\n"),
    (PAGE, "        if len(token) < LEAST_TOKEN:\n", "        if False:\n"),
    (PAGE, ">= LIST_SECONDS:", ">= 0.0:"),
    (PAGE, "if not any(synced for _, synced in namespaces):", "if False:"),
    (PAGE, "            timeout = IDLE_SECONDS\n", ""),
    (ROWS_OF_THE_PAGE, " and _OBJECT_NAME.fullmatch(evidence)", ""),
    (ROWS_OF_THE_PAGE, "_OBJECT_NAME.fullmatch", "_OBJECT_NAME.match"),
    (ROWS_OF_THE_PAGE, "    ConditionType.GUARD_SILENT,\n", ""),
    (ROWS_OF_THE_PAGE, 'if fired.get("status") == "False":', 'if fired.get("status") != "True":'),
    (ROWS_OF_THE_PAGE, " and one.get(\"reason\") == Reason.WORKLOAD_SUCCEEDED", ""),
    (ROWS_OF_THE_PAGE, "sentence[:ROW_TEXT]", "sentence"),
    (SCRIPT, "if (node.textContent !== text) node.textContent = text;", "node.innerHTML = text;"),
    # Webhooks.
    (WEBHOOK, "    if 300 <= status < 400:", "    if False:"),
    (WEBHOOK, "if pause is None or not error.again:", "if pause is None:"),
    (WEBHOOK, "    deadline.start()\n", ""),
    (WEBHOOK, "repr=False", "repr=True"),
    (WEBHOOK, "(shape is Shape.ALERTMANAGER or _is_loopback(host))", "True"),
    (WEBHOOK, "if parts.username is not None:", "if False:"),
    (WEBHOOK, 'no response ({type(error).__name__})', "no response from {webhook.url}"),
    (WEBHOOK, "None if proxy_bypass(host) else ", ""),
    (NOTIFIER, "or event in _noted(job):", "or False:"),
    (NOTIFIER, "not in self._begun:", "is not None:"),
    (NOTIFIER, "    self._todo.put((job.uid, notice))", "    self._deliver(notice)"),
    (NOTIFIER, "> TELL_WITHIN:", "> 9 * TELL_WITHIN:"),
    (NOTIFIER, "                self._note(uid, notice)\n", ""),
    (NOTIFIER, "self._begun -= {(job.uid, event) for event in _noted(job)}", "pass"),
    (OBSTACLES, "or not workload.ours", ""),
    (OBSTACLES, "if len(left) >= wanted or any", "if any"),
    (OBSTACLES, 'newest.get("type") != "Warning"', "False"),
    (OBSTACLES, " and _seconds(event) > made", ""),
    (OBSTACLES, 'return _seconds(event), event.get("type") == "Warning"', "return _seconds(event), False"),
    (OBSTACLES, "[:MESSAGE_LENGTH]", ""),
    (DECIDE, "Phase.STARTING if guard_of(job).step is None else Phase.RUNNING", "Phase.RUNNING"),
    (HALTS, "if pod.guarded and pod.cut_off and is_running(pod)", "if pod.guarded and is_running(pod)"),
    (HALTS, "if pod.guarded and pod.cut_off and is_running(pod)", "if pod.cut_off and is_running(pod)"),
    (HALTS, 'if unguarded_pod(snapshot) is not None:\n        return ""', "pass"),
    (GATHER, 'c.get("reason") == "NodeNotReady"', "True"),
    (GATHER, 'c.get("status") != "True" and c.get("reason")', 'c.get("reason")'),
    (DECIDE, "    if not snapshot.live:\n", "    if False:\n"),
    (DECIDE, "        or _halt(snapshot, says)\n", ""),
    (HALTS, "(is_silent(snapshot) or halt_due(snapshot) is not None)", "halt_due(snapshot) is not None"),
    (HALTS, "return not is_to_stop(snapshot.job) and", "return"),
    (HALTS, "return written or guard_of(job).fire is not None", "return written"),
    (HALTS, "(ConditionType.FIRED, ConditionType.HALTED))", "(ConditionType.FIRED,))"),
    (DECIDE, "        elif snapshot.deaf:\n", "        elif False:\n"),
    (DECIDE, "    if snapshot.pods or (snapshot", "    if (snapshot"),
    (DECIDE, "snapshot.unknown_kind and snapshot.job.status.workload_ref is not None", "False"),
    (DECIDE, "stop is not None and stop.method is StopMethod.SUSPEND", "True"),
    (DECIDE, "StopMethod.STOP: StopMethod.DELETE,", "StopMethod.STOP: StopMethod.STOP,"),
    (DECIDE, "if is_true(job.status, ConditionType.STOPPED):\n            # It",
     "if False:\n            # It"),
    (DECIDE, 'stop = stop.model_copy(update={"empty_since": None})', "pass"),
    # Stopped is said once it has lasted, and looked at once more.
    (DECIDE, "if lasted >= settle or", "if True or"),
    (DECIDE, "lasted >= settle or is_true", "lasted > settle or is_true"),
    (DECIDE, "lasted >= settle or is_true(job.status, ConditionType.STOPPED)", "lasted >= settle"),
    (DECIDE, "SETTLE_SECONDS if stop.method == _first_method(snapshot) else SETTLE_ESCALATED_SECONDS",
     "SETTLE_SECONDS"),
    (DECIDE, '{"empty_since": stop.empty_since or now}', '{"empty_since": now}'),
    (DECIDE, '{"stopped_at": stop.stopped_at or now}', '{"stopped_at": now}'),
    (DECIDE, "LATER_SECONDS if lasted < LATER_SECONDS else None", "None"),
    (DECIDE, "LATER_SECONDS if lasted < LATER_SECONDS else None", "LATER_SECONDS"),
    (DECIDE, "if actions and again is not None:", "if False:"),
    # No verdict is told while no guard runs.
    (DECIDE, "        elif not _is_watched(self._snapshot):\n", "        elif False:\n"),
    (DECIDE, "        if is_silent(self._snapshot):\n", "        if False:\n"),
    (DECIDE, "since is not None and since <= beat", "since is not None"),
    (DECIDE, 'if pod.guarded and pod.phase == "Running"]', 'if pod.phase == "Running"]'),
    (DECIDE, "        if over:\n", "        if False:\n"),
    # A rank 0 without its guard.
    (HALTS, "if pod.rank0 and not pod.guarded and is_running(pod)", "if False"),
    (HALTS, "if pod.rank0 and not pod.guarded and is_running(pod)", "if pod.rank0 and not pod.guarded"),
    (DECIDE, "if pod.guarded and pod.changed and is_running(pod)", "if False"),
    # How a run ended whose workload is gone.
    (DECIDE, "last.ended is not None and (last.ended", "last.ended is None and (last.ended"),
    (DECIDE, "if told and not still_runs:", "if told:"),
    (DECIDE, "and (last.ended.attempt, last.ended.step) == (last.attempt, last.step)", ""),
    (DECIDE, "if is_true(snapshot.job.status, ConditionType.GUARD_SILENT):", "if False:"),
    (DECIDE, "for pod in reversed(snapshot.pods) if pod.failure", "for pod in snapshot.pods if pod.failure"),
    # Pods that may take a day, and pods that do not end.
    (DECIDE, "if pod.terminating and pod.grace > limit", "if pod.terminating"),
    (DECIDE, "if pod.terminating and pod.grace > limit", "if pod.grace > limit"),
    (DECIDE, "(_delete(slow, limit),) if slow else ()", "()"),
    (DECIDE, "_over_by(pod, now) > OVERDUE_SECONDS for", "_over_by(pod, now) >= OVERDUE_SECONDS for"),
    (DECIDE, "Reason.PODS_OVERDUE if overdue else Reason.PODS_TERMINATING", "Reason.PODS_TERMINATING"),
    (DECIDE, ">= REASSERT_SECONDS:\n", "> REASSERT_SECONDS:\n"),
    (DECIDE, "is not None and workload.ours and not", "is not None and not"),
    (DECIDE, "if _has_ended(pod) and not pod.terminating", "if not pod.terminating"),
    (DECIDE, "left = [pod for pod in snapshot.pods if pod.guarded]", "left = list(snapshot.pods)"),
    (DECIDE, "pod.fire is not None and known.fire is None", "pod.fire is not None"),
    (DECIDE, "        or _deleting(snapshot)\n", ""),
    (
        DECIDE,
        "_teardown(snapshot, says, now)\n        or _deleting(snapshot)\n        or _over(snapshot, now)\n",
        "_deleting(snapshot)\n        or _over(snapshot, now)\n        or _teardown(snapshot, says, now)\n",
    ),
    (DECIDE, "or (ref and ref.uid != workload.uid)", ""),
    (DECIDE, "if job.status.workload_ref is not None or workload is None or not workload.ours:",
     "if workload is None or not workload.ours:"),
    (DECIDE, "and pod not in replaced", ""),
    (DECIDE, "before.last_transition_time if before and unchanged else self._now", "self._now"),
    # What is refused without a cluster.
    (REVIEW, "for finding in found if finding.cost is None)", "for finding in found)"),
    (REVIEW, "    return Review(costs=costs, workload=", "    return Review(workload="),
    (REVIEW, "len(name) > MAX_JOB_NAME or ", ""),
    (REVIEW, " or re.fullmatch(JOB_NAME_PATTERN, name) is None", ""),
    (REVIEW, "re.fullmatch(JOB", "re.match(JOB"),
    (REVIEW, "        workload = build_workload(job, adapter, config)\n", "        workload = {}\n"),
    (REVIEW, "    if refused:\n", "    if False:\n"),
    (TYPES, 'path.startswith("/") or ', ""),
    (TYPES, ' or ".." in path.split("/")', ""),
    (TYPES, '".." in path.split("/")', '".." in path'),
    (TYPES, "    AfterValidator(_in_volume),\n", ""),
    (TYPES, 'mode="json", exclude_unset=True', 'mode="json", exclude_defaults=True'),
]  # fmt: skip


@pytest.mark.parametrize(
    "rule",
    [DECIDE, INJECT, GATHER, QUEUE, EVENTS, OBSTACLES, HEALTH, SERVING, APP, SLIM, PAGE, REVIEW],
    ids=lambda rule: rule.source,
)
def test_the_tests_pass_while_nothing_is_broken(tmp_path: Path, rule: Rule) -> None:
    """Else every mutant would seem to be found."""
    assert passes(rule, tmp_path / "room")


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        *(DECIDE, REFUSALS, ISOLATION, LEAKS, DIGEST, INJECT, GATHER, QUEUE, EVENTS, OBSTACLES, HEALTH),
        *(SERVING, APP, SLIM, ROWS_OF_THE_PAGE, PAGE, SCRIPT, NOTIFIER, WEBHOOK, REVIEW, TYPES),
    ],
    ids=lambda rule: rule.source,
)
def test_every_broken_rule_fails_a_test(tmp_path: Path, rule: Rule) -> None:
    assert survivors([mutant for mutant in MUTANTS if mutant[0] == rule], tmp_path) == ""

"""Tests of the tests: each mutant breaks one rule of what is trusted, and a test must see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

DAMAGE = Path(__file__).resolve().parent / "test_store_damage.py"
DATABASE, EVENTS, CHAIN, WITNESS = (
    Rule("guard_service", f"store/{name}.py", DAMAGE) for name in ("database", "events", "chain", "witness")
)
ENDS = Rule("guard_service", "store/events.py", DAMAGE.with_name("test_store.py"))

IDENTITY_TESTS = DAMAGE.parents[1] / "heldout" / "test_identity.py"
IDENTITY, STAGING = (
    Rule("guard_service", f"heldout/{name}.py", IDENTITY_TESTS) for name in ("identity", "staging")
)
FITNESS = Rule("guard_service", "heldout/fitness.py", IDENTITY_TESTS.with_name("test_fitness.py"))
MAPPING = Rule("guard_service", "cluster/mapping.py", DAMAGE.with_name("test_cluster_mapping.py"))
TOLD_TO_THE_STATUS = Rule("guard_core", "trainer_view.py", DAMAGE.with_name("test_cluster_mapping.py"))
REPORTED = DAMAGE.parents[1] / "cli" / "run" / "test_report.py"
PAGE = Rule("guard_service", "dashboard/page.py", REPORTED)
REPORT = Rule("guard_cli", "report/page.py", REPORTED)

OF_A_CLUSTER = REPORTED.parents[1] / "report" / "test_report_command.py"
EVIDENCE, KEPT, ENDED = (
    Rule("guard_cli", f"report/{name}.py", OF_A_CLUSTER) for name in ("evidence", "page", "ending")
)

STATUS = Rule("guard_cli", "status.py", REPORTED.parents[1] / "test_status.py")

ALLOWANCE = Rule("guard_service", "engine/allowance.py", DAMAGE.with_name("test_allowance.py"))

STORES_LATCHES, READS_LATCHES = (
    Rule("guard_service", f"store/{name}.py", DAMAGE.with_name("test_store.py"))
    for name in ("events", "history")
)

RESTORES_LATCHES = Rule("guard_service", "engine/ledger.py", DAMAGE.with_name("test_latch_times.py"))

LISTENING = DAMAGE.with_name("test_ports.py")
PORTS, SERVER, VERDICTS, PASSED_ON = (
    Rule("guard_service", name, LISTENING)
    for name in ("ports.py", "server.py", "engine/verdicts.py", "settings.py")
)

ENCRYPTED = DAMAGE.with_name("test_tls.py"), (DAMAGE.with_name("conftest.py"),)
OVER_TLS, MAIN, SETTINGS = (
    Rule("guard_service", name, *ENCRYPTED) for name in ("server.py", "__main__.py", "settings.py")
)
TRAINERS = Rule("guard_client", "client.py", *ENCRYPTED)
CERTIFICATE = Rule("guard_operator", "reconcile/certificate.py", *ENCRYPTED)

PROTOCOL = Rule("guard_service", "protocol.py", DAMAGE.with_name("test_connections.py"))
EVALUATIONS = Rule("guard_service", "engine/evaluations.py", DAMAGE.with_name("test_backlog.py"))
KEEP_BEST = Rule("guard_service", "engine/evaluations.py", DAMAGE.with_name("test_keep_best.py"))
UNPROVEN, NOTED = (
    Rule("guard_service", name, DAMAGE.with_name("test_unproven.py"))
    for name in ("engine/evaluations.py", "store/events.py")
)
BEGUN, BEGUN_HERE, BEGUN_ENDED = (
    Rule("guard_service", name, DAMAGE.with_name("test_ended_in_an_evaluation.py"))
    for name in ("engine/evaluations.py", "store/events.py", "engine/engine.py")
)
NAMED = Rule("guard_service", "engine/ingest.py", DAMAGE.with_name("test_names.py"))
METRICS = Rule("guard_service", "metrics.py", DAMAGE.with_name("test_open_page.py"))

FOLLOWED = DAMAGE.with_name("test_following.py")
FEED, FEED_MODEL = Rule("guard_service", "feed.py", FOLLOWED), Rule("guard_core", "feed.py", FOLLOWED)

LINKED = Rule(
    "guard_service",
    "settings.py",
    DAMAGE.with_name("test_settings.py"),
    (DAMAGE.parents[1] / "service_links.py",),
)

AGAIN = Rule("guard_service", "engine/ingest.py", DAMAGE.with_name("test_announced_again.py"))

MUTANTS: list[Mutant] = [
    # What a trainer announces again is written, too.
    (
        AGAIN,
        "    raise full\n        await self._ledger.call(store.renew",
        "    pass\n        await self._ledger.call(store.renew",
    ),
    (AGAIN, "if found.manifest == await self._ledger.call(store.manifest, key):", "if False:"),
    (AGAIN, "        await self._ledger.call(store.renew_manifest, key, found.manifest)\n", ""),
    # What Kubernetes makes of a Service.
    (LINKED, "without_service_links(os.environ)", "os.environ"),
    (LINKED, ' if not is_service_link(name.upper(), value or "")', ""),
    (LINKED, "is_service_link(name.upper(), ", "is_service_link(name, "),
    # What is skipped where only the newest is wanted.
    (KEEP_BEST, "shutil.copytree(staged, new, copy_function=_linked)", "shutil.move(staged, new)"),
    (KEEP_BEST, "        with contextlib.suppress(OSError):\n            _put_back(old, best)\n", ""),
    (KEEP_BEST, "copytree(staged, new, copy_function=_linked)", "copytree(staged, new)"),
    (
        KEEP_BEST,
        "    except OSError:\n        shutil.copyfile",
        "    except ValueError:\n        shutil.copyfile",
    ),
    (KEEP_BEST, "    shutil.rmtree(new, ignore_errors=True)\n    if best", "    if best"),
    (KEEP_BEST, "        shutil.rmtree(old, ignore_errors=True)\n", "        pass\n"),
    (EVALUATIONS, "last is not None and request", "request"),
    (EVALUATIONS, " and request.pass_index == 0 and len", " and len"),
    (EVALUATIONS, " and len(queue) > 1", ""),
    # What a server may not have loaded.
    (UNPROVEN, "if before is None or before[0] == CheckpointKey.of(request) or", "if before is None or"),
    (UNPROVEN, " or before[1] != said:", ":"),
    (UNPROVEN, "            refuse_unproven(request, result.said, await", "            (await"),
    (UNPROVEN, "        FailureKind.UNPROVEN,\n", "        FailureKind.UNDERWAY,\n"),
    (NOTED, 'self._database.set_meta("said", json.dumps([*key, said]))', "pass"),
    # What is followed.
    (FEED, "if quiet > SILENT_SECONDS else", "if False else"),
    (FEED, "level=Level.UNKNOWN, message=message)", "level=Level.HEALTHY, message=message)"),
    (FEED, "if self._lost or self._state.trouble:", "if self._lost:"),
    (FEED, "return self._lost or self._state.trouble", "return self._state.trouble"),
    (FEED, "why, self._bad_before + self._state.bad", "why, self._state.bad * 0"),
    (FEED, "        self._state = FollowerState()\n\n    @property", "\n    @property"),
    (FEED, "bad: int = Field(0, ge=0)", "bad: int = Field(0)"),
    (FEED, 'trouble: str = Field("", max_length=4096)', 'trouble: str = ""'),
    (FEED_MODEL, 'pattern=rf"^{_PART}(/{_PART})*$"', 'pattern=rf"{_PART}(/{_PART})*"'),
    (FEED_MODEL, r"|\.\.[^/\x00]+|", r"|\.\.[^/\x00]*|"),
    (FEED_MODEL, "self.layout not in LAYOUTS", "False"),
    # What a page without a token says.
    (METRICS, "if family.name not in WITHHELD", ""),
    (METRICS, '        "rlguard_guard_truncated_completions",\n', ""),
    (METRICS, '        "rlguard_guard_unanswered_completions",\n', ""),
    (METRICS, '        "rlguard_guard_timed_out_completions",\n', ""),
    (METRICS, '        "rlguard_guard_proxy_score",\n', ""),
    (METRICS, '        "rlguard_guard_store_bytes",\n', ""),
    (
        METRICS,
        '    {\n        "rlguard_guard_truncated',
        '    {\n        "rlguard_guard_step",\n        "rlguard_guard_truncated',
    ),
    # What a client may hold.
    (PROTOCOL, "        if len(self.connections) > MAX_CONNECTIONS:\n", "        if False:\n"),
    (PROTOCOL, "len(self.connections) > MAX_CONNECTIONS", "len(self.connections) >= MAX_CONNECTIONS"),
    (PROTOCOL, "            if waiting:\n", "            if False:\n"),
    (PROTOCOL, "min(waiting, key", "max(waiting, key"),
    (PROTOCOL, "        self._wait()\n\n    def connection_lost", "\n    def connection_lost"),
    (
        PROTOCOL,
        "super().on_message_complete()\n        self._watch()",
        "super().on_message_complete()\n        self._stop_waiting()",
    ),
    (PROTOCOL, "super().on_message_complete()\n        self._watch()", "super().on_message_complete()"),
    (
        PROTOCOL,
        "        super().on_response_complete()\n        self._watch()\n",
        "        super().on_response_complete()\n",
    ),
    (PROTOCOL, "        self._blocked = True\n", "        pass\n"),
    (PROTOCOL, "and not self._blocked:", "or self._blocked:"),
    (PROTOCOL, "not cycle.more_body and not cycle", "not cycle"),
    (
        PROTOCOL,
        "        if 0 < self.transport.get_write_buffer_size() < self._unsent:\n",
        "        if False:\n",
    ),
    (PROTOCOL, " < self._unsent:", ":"),
    (PROTOCOL, "        if len(self.pipeline) >= MAX_PIPELINED:\n", "        if False:\n"),
    (PROTOCOL, "else self._unheard_bytes + len(data)", "else 0"),
    # Where the guard listens: its socket is its own, and a port that is taken stops nothing.
    (PORTS, "            advice=True,\n", ""),
    (PORTS, "            listener.listen()  #", "            pass  #"),
    (PORTS, "        self._taken.note(self._port, self._listener is None)\n", ""),
    (PORTS, "            if not self._said:\n", "            if True:\n"),
    (PORTS, "            self.try_open()\n", "            self.open()\n"),
    (VERDICTS, "not condition.advice and condition", "condition"),
    (SERVER, "if not listens or listener", "if listener"),
    (SERVER, "or listener.family not in (socket.AF_INET, socket.AF_INET6):", "or False:"),
    (SERVER, "        listener.set_inheritable(False)\n", ""),
    (PASSED_ON, "if self.listen_fd is not None and self.socket is not None:", "if False:"),
    (
        PASSED_ON,
        "        if self.listen_fd is not None:\n            raise",
        "        if False:\n            raise",
    ),
    (SERVER, "        path.chmod(0o666)", "        path.chmod(0o600)"),
    (SERVER, "        _remove_dead(path)\n", ""),
    (SERVER, "if not stat.S_ISSOCK(path.lstat().st_mode):", "if False:"),
    (SERVER, '    raise OSError(errno.EADDRINUSE, "another guard listens there")', "    path.unlink()"),
    # A guard that speaks TLS, and who verifies it.
    (OVER_TLS, 'return {"ssl_certfile": certificate, "ssl_keyfile": key}', "return {}"),
    (OVER_TLS, ', password="")', ", password=lambda: 1 / 0)"),
    (SETTINGS, "if (self.tls_certificate is None) != (self.tls_key is None):", "if False:"),
    (MAIN, "_config(app, 1, tls)", "_config(app, 1, {})"),
    (TRAINERS, "ssl.create_default_context(cadata=ca)", "ssl._create_unverified_context(cadata=ca)"),
    (TRAINERS, 'if ca is not None and parts.scheme != "https":', "if False:"),
    (CERTIFICATE, "x509.DNSName(host)", 'x509.DNSName("localhost.example")'),
    (CERTIFICATE, ".not_valid_before(now - BEFORE)", ".not_valid_before(now)"),
    (CERTIFICATE, "ca=False", "ca=True"),
    (PAGE, '.replace("<", ', '.replace("\\0", '),
    (PAGE, 'html.escape(str(value).encode("utf-8", "replace").decode())', "str(value)"),
    (PAGE, '.encode("utf-8", "replace").decode()', ""),
    (PAGE, "script-src 'sha256-{digest}'", "script-src 'unsafe-inline'"),
    (REPORT, "if verdict.fire and _DECISIVE", "if _DECISIVE"),
    (REPORT, "if of_latch is evaluations[-1]:", "if of_latch:"),
    (REPORT, "if not of_latch:", "if of_latch is None:"),
    (REPORT, 'return "<td>—</td>"', 'return "<td>0</td>"'),
    (KEPT, 'if content.history.get("cut_off"):', "if False:"),
    # How it ended, which no verdict says.
    (
        EVIDENCE,
        "    for one in kept if isinstance(kept, list) else ():\n        of =",
        "    for one in kept or ():\n        of =",
    ),
    (ENDED, "    if verdict.fire:\n", "    if False:\n"),
    (ENDED, "    if verdict.halt:\n", "    if False:\n"),
    (ENDED, ' if one.status == "True"}', "}"),
    (ENDED, "for kind in _ENDS if kind in true), None)", "for kind in true if kind in _ENDS), None)"),
    (ENDED, """    "Halted": (Level.WARNING, "halted", "Halted ({reason})"),\n""", ""),
    (ENDED, 'if noted.reason == "WorkloadSucceeded":', "if True:"),
    (ENDED, 'if noted.reason == "WorkloadSucceeded":', "if False:"),
    (ENDED, 'return Heading(Level.UNKNOWN, "unknown", _with', 'return Ended(verdict.level, "unknown", _with'),
    (ENDED, "reason=noted.reason)), noted.message)", "reason=noted.reason)), verdict.reason)"),
    # What is known now of a job, and what of it is history.
    (STATUS, '(verdict.get("level"), verdict.get("reason"))', '(verdict.get("level"), now["reason"])'),
    (STATUS, '(verdict.get("level"), verdict.get("reason"))', '(now["level"], verdict.get("reason"))'),
    (STATUS, """        yield plain(f"{now['level']}: {now['reason']}")\n""", ""),
    (STATUS, 'job_lines(one) if "now" in one else verdict_lines', "verdict_lines"),
    (STATUS, 'yield plain(f"{before}{level}', 'yield plain(f"{level}'),
    (STATUS, ' and one["message"] != now["reason"]', ""),
    (STATUS, ' and one["status"] != "True" and', " and"),
    (STATUS, ' and one["status"] != "True" and', ' and one["status"] == "False" and'),
    (STATUS, 'frozenset({"Guarded", "Isolated"})', 'frozenset({"Guarded"})'),
    (STATUS, 'frozenset({"Guarded", "Isolated"})', 'frozenset({"Isolated"})'),
    (STATUS, """if one["status"] == "True"]""", "]"),
    (EVIDENCE, "cut_off=verdict.rounds > len(rounds)", "cut_off=False"),
    (EVIDENCE, "latch = fire or halt", "latch = fire"),
    (EVIDENCE, '"of_rounds": steps is None', '"of_rounds": True'),
    (EVIDENCE, '{**one, "reward": None, "kl": None}', "one"),
    (EVIDENCE, "len(rounds) if steps is None else steps.total", "len(rounds)"),
    (EVIDENCE, "Level.FIRED if fire else given", "given"),
    (EVIDENCE, "    if code not in list(Code):\n", "    if code is None:\n"),
    (EVIDENCE, 'setdefault("level", Level.UNKNOWN)', 'setdefault("level", Level.HEALTHY)'),
    (EVIDENCE, " and not isinstance(value, bool)", ""),
    (EVIDENCE, " and abs(value) < LARGEST", ""),
    (EVIDENCE, "kl if _is_number(kl, int, float) else None", "kl or 0.0"),
    (EVIDENCE, "(ValueError, RecursionError)", "ValueError"),
    # When a latch closed.
    (RESTORES_LATCHES, "restored.latched_at | self.latched_at", "self.latched_at"),
    (STORES_LATCHES, "            self._database.put_meta(LATCHED_AT, dump_times(times))\n", ""),
    (STORES_LATCHES, "self._latched_at() | dict", "dict"),
    (READS_LATCHES, '{kind == "fire": datetime', "{True: datetime"),
    (ALLOWANCE, "return size >= STEPS_SHARE * self.max_bytes", "return False"),
    (ALLOWANCE, "if size >= ANNOUNCED_SHARE * self.max_bytes:", "if False:"),
    (ALLOWANCE, "if count > self._steps:", "if False:"),
    (ALLOWANCE, "min(BURST, self._steps + RATE * (now - self._at))", "min(BURST, self._steps)"),
    (ALLOWANCE, "min(BURST, self._steps + RATE * (now - self._at))", "self._steps + RATE * (now - self._at)"),
    (ALLOWANCE, "        self._steps -= count\n", ""),
    (DATABASE, "elif written != seal:", "elif False:"),
    (DATABASE, "if chain.seq < known.seq:", "if False:"),
    (DATABASE, "if chain.digest != known.digest:", "if False:"),
    (DATABASE, "if head is not None and head.seq > 0:", "if False:"),
    (EVENTS, "            if not stored:\n", "            if False:\n"),
    (ENDS, '.model_copy(update={"gone": max(report.gone, known.gone)})', ""),
    (ENDS, "_end_of(report) > _end_of(known)", "True"),
    (ENDS, "if report.step is None and not report.gone:", "if report.step is None:"),
    (EVENTS, "for latch in missing:", "for latch in ():"),
    (EVENTS, "if set(both) != set(kept):", "if False:"),
    (DATABASE, "self._head.write(Head(chain.seq, chain.digest))", "pass"),
    (DATABASE, "opened.enter_context(closing(HeadFile(state_dir, head)))", "HeadFile(state_dir, head)"),
    (
        DATABASE,
        "self._head.write(Head(chain.seq, chain.digest))",
        "HeadFile(self._state_dir, Head(chain.seq, chain.digest)).close()",
    ),
    (EVENTS, "write_latches(self._state_dir, (*self._latches(), *latches))", "pass"),
    (CHAIN, "UNION ALL SELECT seq, state FROM snapshot", ""),
    (CHAIN, "noted + still", "still"),
    (CHAIN, " or size <= PAGE_BYTES:", " or size:"),
    (CHAIN, "ORDER BY seq) / ?", "ORDER BY seq) / 9223372036854775807 / ?"),
    (CHAIN, "ORDER BY seq) / ?", "ORDER BY seq) % ?"),
    (CHAIN, "ORDER BY page", "ORDER BY page DESC"),
    (CHAIN, "min(last + PAGE, until)", "last + PAGE"),
    (CHAIN, "                last = end\n", "                last = ends[-1]\n"),
    (CHAIN, 'events.update(b"\\x1e")', "pass"),
    (DATABASE, "noted(self.connection) if self._notes else self._noted", "self._noted"),
    (DATABASE, "noted(self.connection) if self._notes else self._noted", "noted(self.connection)"),
    (DATABASE, "            self._notes = False\n            try", "            try"),
    (DATABASE, "        self._notes = True\n", ""),
    (
        DATABASE,
        "            self._chain, self._noted, self._still, self._seal = chain, noting, unchanging, seal",
        "            self._chain, self._still, self._seal = chain, unchanging, seal",
    ),
    (CHAIN, "self._events.digest() + self._outcomes.digest()", "self._events.digest()"),
    (CHAIN, "step || char(31) || pass", "pass"),
    (WITNESS, "if content != _signed(text):", "if False:"),
    (WITNESS, "    draft.rename(path)\n    sync_directory(path.parent)", "    draft.rename(path)"),
    (MAPPING, "    if pins is not None:\n        travelling[_PINS] = as_one(pins)\n", ""),
    (MAPPING, "travelling[_PINS] = as_one(pins)", "travelling[_PINS] = dict(pins)"),
    (MAPPING, "judge is None and (closed or _has_begun(status))", "judge is None and closed"),
    (MAPPING, "        judge.fold_lost(lost)\n", ""),
    (
        MAPPING,
        'judged = any(counts) or status.get("level") not in (None, Level.UNKNOWN.value)',
        "judged = any(counts)",
    ),
    (MAPPING, "judged = any(counts) or", "judged ="),
    (MAPPING, 'return judged or ("detectorState" in status and None in counts)', "return judged"),
    (MAPPING, "in status and None in counts)", "in status)"),
    (MAPPING, '"unscored", "lost", "fire"', '"unscored", "fire"'),
    (IDENTITY, "    if _ALL in pins:\n        return dict(pins)\n", ""),
    (IDENTITY, "json.dumps(sorted(pins.items()))", "json.dumps(sorted(pins))"),
    (IDENTITY, "        pins = as_one(pins)\n", "        return\n"),
    (MAPPING, '_CONTROLS.sub("\\ufffd", text)', "text"),
    (MAPPING, "plain if len(plain) <= limit else", "plain if True else"),
    (MAPPING, 'if "fire" in status or "halt" in status:', "if True:"),
    (MAPPING, "if place < min(own)}", "}"),
    # The steps come with a last word, once, and stay.
    (
        MAPPING,
        "return over and not _has_its_steps(former, verdict, over)",
        "return not _has_its_steps(former, verdict, over)",
    ),
    (MAPPING, "return over and not _has_its_steps(former, verdict, over)", "return over"),
    (MAPPING, 'return "keptSteps" in status and stay', 'return "keptSteps" in status'),
    (MAPPING, 'return "keptSteps" in status and stay', "return stay"),
    (MAPPING, ' or status.get("ended") == newest', ""),
    (MAPPING, ' or status.get("ended") == newest', ' or "ended" in status'),
    (MAPPING, " == newest or same", " == newest"),
    (MAPPING, "same = over and {key: status.get(key) for key in newest} == newest", "same = over"),
    (MAPPING, "same = over and {key", "same = {key"),
    (MAPPING, 'one.get("status") == "True" or', ""),
    (MAPPING, ' or one.get("reason") == GUARD_JUDGES for one', " for one"),
    (MAPPING, ' if one.get("type") in ENDS]', "]"),
    (MAPPING, 'former["keptSteps"] if _has_its_steps(former, verdict, known.over) else known', "known"),
    (MAPPING, ' "rollouts", "keptSteps"}\n', ' "rollouts"}\n'),
    (MAPPING, "    every = lost | own\n", "    every = own\n"),
    (MAPPING, "None if best is None else CheckpointKey.of(best))", "None)"),
    (
        MAPPING,
        "reason = for_the_status(verdict.code, verdict.reason, verdict.failure)",
        "reason = verdict.reason",
    ),
    (MAPPING, "_text(for_the_status(Code(latch.code), latch.message, None))", "_text(latch.message)"),
    (
        MAPPING,
        "return FailureKind(kind).words if kind in TOLD_BY_KIND else _text(words)",
        "return _text(words)",
    ),
    (MAPPING, '    if kind is None:\n        return ""\n', ""),
    (MAPPING, 'halt["message"], None)}', 'halt["message"], FailureKind.WEIGHTS)}'),
    # A guard that ends in the midst of an evaluation.
    (BEGUN, "            await self._begin(request)\n            result", "            result"),
    (BEGUN, "    if before >= MOST_BEGUN:\n", "    if before > MOST_BEGUN:\n"),
    (BEGUN, "    if before >= MOST_BEGUN:\n", "    if before >= MOST_BEGUN - 1:\n"),
    (BEGUN, "        refuse_once_more(request, before)\n", ""),
    (BEGUN, "request.pass_index, before + 1)", "request.pass_index, 1)"),
    (BEGUN, "(newest.key, newest.pass_index) != (CheckpointKey.of(request), request.pass_index)", "False"),
    (
        BEGUN,
        "(newest.key, newest.pass_index) != (CheckpointKey.of(request), request.pass_index)",
        "newest.key != CheckpointKey.of(request)",
    ),
    (BEGUN, "times=self._begun.times - 1)", "times=0)"),
    (BEGUN, "times=self._begun.times - 1)", "times=self._begun.times)"),
    (
        BEGUN_HERE,
        '"begun", json.dumps([*begun.key, begun.pass_index, begun.times])',
        '"begun", json.dumps([*begun.key, 0, begun.times])',
    ),
    (BEGUN_ENDED, "                await self._evaluations.give_up()\n", "                pass\n"),
    (TOLD_TO_THE_STATUS, "{FailureKind.UNDERWAY, FailureKind.TOKENIZER, ", "{FailureKind.TOKENIZER, "),
    (TOLD_TO_THE_STATUS, "FailureKind.UNDERWAY, FailureKind.TOKENIZER, ", "FailureKind.UNDERWAY, "),
    (TOLD_TO_THE_STATUS, ", FailureKind.CHECKPOINT})", "})"),
    (TOLD_TO_THE_STATUS, "failure is None or failure in TOLD_BY_KIND", "failure in TOLD_BY_KIND"),
    (TOLD_TO_THE_STATUS, "failure is None or failure in TOLD_BY_KIND", "True"),
    (MAPPING, "return closed | former | summary", "return former | summary"),
    (MAPPING, "return closed | former | summary", "return former | closed | summary"),
    (IDENTITY, "\\0{about.st_ctime_ns}", ""),
    (IDENTITY, "    if now == before:", "    if True:"),
    (IDENTITY, "if now is not None and now < before:", "if False:"),
    (IDENTITY, "if now is not None and now < before:", "if now is not None and len(now) < len(before):"),
    (IDENTITY, "or len(announced) == _ONE_DIGEST", ""),
    (IDENTITY, "suppress(FileNotFoundError)", "suppress(KeyError)"),
    (IDENTITY, "    if len(named) > MAX_NAMES:", "    if False:"),
    (IDENTITY, '    "emoji",\n', ""),
    (IDENTITY, "        if path.name == _CONFIG:\n", "        if False:\n"),
    (IDENTITY, '        "eos_token_id",\n', ""),
    (IDENTITY, "    return {_CONFIG: _NONE, **found}", "    return found"),
    (IDENTITY, "known = {_CONFIG: pins.get(_CONFIG), **(", "known = {**("),
    (IDENTITY, " or k in _TEXT_CONFIGS}\n    inside", "}\n    inside"),
    (IDENTITY, " | {k: v for k, v in inside.items() if v}", ""),
    (FITNESS, "    if len(names) > MAX_NAMES:", "    if False:"),
    (FITNESS, "if not is_unicode(name))", "if False)"),
    (NAMED, "if not is_unicode(str(resolved)):", "if False:"),
    (FEED, 'return plain(str(message.get("lost", "")), MAX_TOLD)', 'return str(message.get("lost", ""))'),
    (
        FITNESS,
        'name.startswith("pytorch_model_fsdp"),',
        'name.startswith("pytorch_model_fsdp") or name.endswith(".distcp"),',
    ),
    (IDENTITY, "if sha256 == expected.before:", "if False:"),
    (IDENTITY, "for name in pins.keys() | known.keys()", "for name in pins.keys() & known.keys()"),
    (IDENTITY, "if k not in vary", ""),
    (STAGING, "        finally:  # says", "        except KeyError:  # says"),
    (
        STAGING,
        "        refuse_changed(source, directory, announced)\n        try:",
        "        refuse_changed(source, os.open(source, 0), announced)\n        try:",
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_broken_rule_fails_a_test(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""

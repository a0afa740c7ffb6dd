"""Tests of the tests: each mutant breaks a rule of groups, adapters or answers, and a test must notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

HERE = Path(__file__).resolve().parent
TESTS = HERE / "test_groups.py"
SPLIT, CHILD, MAKING, DISJOINT = (
    Rule("guard_service", f"heldout/{name}.py", TESTS) for name in ("split", "child", "making", "disjoint")
)
ADAPTER = Rule("guard_core", "adapter.py", HERE.parent / "core" / "test_adapter.py")
REASONING = HERE / "test_reasoning.py"
ASKING, ANSWERS, SCORERS, ITEM, SHARES, ENDPOINT = (
    Rule("guard_service", f"heldout/{name}.py", REASONING)
    for name in (
        *("asking", "child", "scorers", "split"),
        *("evaluators/__init__", "evaluators/openai"),
    )
)
VLLM, AGAIN, PROCESS = (
    Rule("guard_service", f"heldout/{name}.py", HERE / "test_vllm.py")
    for name in ("evaluators/vllm", "worker", "child")
)
WORKER = Rule("guard_service", "heldout/evaluators/vllm_worker.py", HERE / "test_vllm.py")
WHOLE = Rule("guard_service", "heldout/evaluators/weights.py", HERE / "test_vllm.py")
MERGED = Rule("guard_service", "heldout/evaluators/lora.py", HERE / "test_adapters.py")
FRAME = Rule("guard_service", "heldout/evaluators/frame.py", HERE / "test_vllm.py")
SERVED, SERVED_BY = (
    Rule("guard_service", f"heldout/evaluators/{name}.py", HERE / "test_served.py")
    for name in ("served", "openai")
)
SERVED_WHERE, TAKEN = (
    Rule("guard_service", f"heldout/{name}.py", HERE / "test_served.py") for name in ("config", "worker")
)
SERVED_FRAME = Rule("guard_service", "heldout/evaluators/frame.py", HERE / "test_served.py")
SAID = Rule("guard_service", "heldout/evaluators/openai.py", HERE / "test_openai.py")
CONFIG = Rule("guard_service", "heldout/config.py", HERE / "test_config.py")
CODEC = Rule("guard_service", "heldout/evaluators/codec.py", REASONING)
EVALUATION = Rule("guard_core", "evaluation.py", HERE / "test_config.py")
COPIES, COPIED = (
    Rule("guard_service", f"heldout/{name}.py", HERE / "test_checkpoint.py")
    for name in ("evaluators/local", "worker")
)
STAGING = Rule("guard_service", "heldout/staging.py", HERE / "test_staging.py")
TOLD = Rule("guard_service", "heldout/errors.py", HERE / "test_staging.py")
ENDS = Rule("guard_service", "heldout/evaluators/codec.py", HERE / "test_checkpoint.py")
BASE = Rule("guard_service", "heldout/base_model.py", HERE / "test_base_model.py")
STARTS = Rule("guard_service", "__main__.py", HERE / "test_base_model.py")
HEADER = Rule("guard_service", "heldout/adapter_files.py", HERE / "test_adapters.py")
NAMED_FILES, CLEANED = (
    Rule("guard_service", f"heldout/{name}.py", HERE / "test_named_files.py")
    for name in ("named_files", "evaluators/local")
)

SCORERS_FILE, WORKER_FILE, CHILD_FILE = (
    Rule("guard_service", f"heldout/{name}.py", HERE / "test_worker.py")
    for name in ("scorers", "worker", "child")
)

MUTANTS: list[Mutant] = [
    (SPLIT, "if alone else", "if True else"),
    (SPLIT, "[fmean(outcomes[place] for place in group) for group in self.groups]", "list(outcomes)"),
    (CHILD, "self._split.by_group(", "list("),
    (ANSWERS, "(p.score >= 1.0) * (1 - r.score)", "p.score * (1 - r.score)"),
    (ANSWERS, "(p.score >= 1.0) * (1 - r.score)", "float(p.score >= 1.0)"),
    (ANSWERS, "if fooled and not each_is_one", "if fooled"),
    (ANSWERS, "if fooled and not each_is_one", "if not each_is_one"),
    (
        SCORERS_FILE,
        "if self.name in BUILT_IN:\n            return None",
        "if False:\n            return None",
    ),
    (SCORERS_FILE, "{self._scorer.name: code}", "{}"),
    (SCORERS_FILE, "if (code := one.code) is not None}", "if (code := one.code) is None}"),
    (WORKER_FILE, 'if self._scorer_code not in (None, ready["scorer_code"]):', "if False:"),
    (WORKER_FILE, "| base | code", "| base"),
    (WORKER_FILE, '        and not (name.startswith("VLLM_") and is_service_link(name, value))\n', ""),
    (WORKER_FILE, " and is_service_link(name, value))", ")"),
    (WORKER_FILE, 'name.startswith("VLLM_") and is_service', "is_service"),
    (CHILD_FILE, "({} if self._proxy is None else self._proxy.code)", "{}"),
    (MAKING, "and item.group is None else item", "and False else item"),
    (DISJOINT, "if len(places) > 1", "if len(places) > 0"),
    (DISJOINT, "family[last] = first", "family[other] = place"),
    (ADAPTER, 'if kind != "LORA"', "if False"),
    (ADAPTER, "if config.init_lora_weights not in", "if False and config.init_lora_weights not in"),
    (ADAPTER, "if name not in _WITHOUT_EFFECT and others[name]", "if False"),
    (ADAPTER, r"^\^?[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", ".*"),
    (ADAPTER, ", max_length=MAX_NAME)", ")"),
    (ADAPTER, "[A-Za-z0-9_.]{1,300}", "[A-Za-z0-9_.]+"),
    (ADAPTER, 'f".{module}".endswith(f".{pattern}")', "module.endswith(pattern)"),
    (ADAPTER, 'f"^{module}" == pattern or ', ""),
    (ADAPTER, "a[0] != rank or b[1] != rank", "False"),
    (ADAPTER, "elif not config.use_dora", "elif False"),
    (ADAPTER, "in copies.items() if module not in halves)", "in copies.items() if False)"),
    (ADAPTER, "if not 1 <= len(halves) <= MAX_MODULES", "if False"),
    (ADAPTER, "elif (a[1], b[0]) != linear[module]", "elif False"),
    (ADAPTER, "if theirs.unquantised != ours.unquantised", "if False"),
    (ADAPTER, "if name.endswith(suffix)", "if False"),
    (ADAPTER, "if same_name and ours.revision", "if ours.revision"),
    (ADAPTER, "not ours.revision.startswith(revision)", "False"),
    # Whose the base model is, and that it stays the same.
    (STARTS, "if base is not None and (why :=", "if False and (why :="),
    (BASE, "for one in (path, *files)", "for one in (path,)"),
    (BASE, "for one in (path, *files)", "for one in files"),
    (BASE, "for name in _names_read(path)]", "for name in os.listdir(path)]"),
    (BASE, "Path(os.path.realpath(path)), Path(", "Path(os.path.abspath(path)), Path("),
    (BASE, "real.is_relative_to(root) or ", ""),
    (BASE, " or any(_are_same(one, root) for one in (real, *real.parents))", ""),
    (BASE, "            if _stamps(self.path) == self.stamps:\n", "            if True:\n"),
    (BASE, "            if _stamps(self.path) == self.stamps:\n", "            if False:\n"),
    (BASE, "found if found.sha256 == self.sha256 else None", "found"),
    (BASE, "found if found.sha256 == self.sha256 else None", "None"),
    (BASE, "name, status.st_dev, ", "name, 0, "),
    (BASE, "status.st_ino, ", "0, "),
    (BASE, "status.st_size, ", "0, "),
    (BASE, "status.st_mtime_ns, ", "0, "),
    (BASE, "status.st_mtime_ns, status.st_ctime_ns", "status.st_mtime_ns, 0"),
    # What an engine failed of that did not come up, and how long its sequences are.
    (VLLM, "if _without_room(error) else FailureKind.EVALUATOR", "if False else FailureKind.EVALUATOR"),
    (VLLM, "(error) else FailureKind.EVALUATOR", "(error) else FailureKind.WEIGHTS"),
    (VLLM, "return out_of_memory(error) or _NO_ROOM", "return _NO_ROOM"),
    (VLLM, '    "out of memory"\n', '    "no such words"\n'),
    (VLLM, r"|is less than desired \w+ memory utilization", "|no such words"),
    (VLLM, "|no available memory for the cache blocks", "|no such words"),
    (VLLM, "|larger than the available kv cache memory", "|no such words"),
    (VLLM, r"|not enough \w+ memory available", "|no such words"),
    (VLLM, "|can't allocate memory", "|no such words"),
    (VLLM, "        refuse_not_finite(wrong, shown)\n", ""),
    (VLLM, "_longest(settings.max_model_len, codec.positions)", "_AS_THE_MEMORY_ALLOWS"),
    (VLLM, "min(wanted, positions)", "wanted"),
    (VLLM, "codec.positions is None or engine.positions < codec.positions", "codec.positions is None"),
    (VLLM, "codec = replace(codec, positions=engine.positions, limit=_LIMIT)", "pass"),
    (VLLM, "elif self._engine.frame != frame", "elif False"),
    (
        VLLM,
        "            refuse_without_room(target.parent, what, model.get_memory_footprint())\n",
        "            pass\n",
    ),
    (VLLM, "                shutil.rmtree(merged, ignore_errors=True)\n", "                pass\n"),
    (FRAME, "json.dumps([config, sorted(found), alike]", "json.dumps([config, alike]"),
    (FRAME, "json.dumps([config, sorted(found), alike]", "json.dumps([sorted(found), alike]"),
    (FRAME, "json.dumps([config, sorted(found), alike]", "json.dumps([config, sorted(found)]"),
    (SERVED_FRAME, "alike or read.tie_word_embeddings or text.tie_word_embeddings", "alike"),
    (VLLM, "if not all(made):", "if not any(made):"),
    (FRAME, "if any(equal(own, one) for one in others):", "if False:"),
    (FRAME, "if any(equal(own, one) for one in others):", "if others:"),
    (FRAME, "one if dtype is None else one.to(dtype) for", "one for"),
    (FRAME, "if one == other]:", "if False]:"),
    (VLLM, "if tied and not has_tied_values(", "if False and not has_tied_values("),
    (VLLM, "return not tied and all(one.reloadable", "return all(one.reloadable"),
    (VLLM, "return not tied and all(one.reloadable for one in watched)", "return not tied"),
    (VLLM, "not _reloadable(path, frame, shown, llm, watched)\n", "False\n"),
    (VLLM, "all(one.sleeps for one in watched)", "True"),
    (WORKER, "any(tensor.untyped_storage().data_ptr() not in known for tensor in kept)", "False"),
    (WORKER, "not in known for tensor in kept", "for tensor in kept"),
    (WHOLE, "if nothing_else and (more :=", "if False and (more :="),
    (WHOLE, "if nothing_else and (more :=", "if (more :="),
    (STAGING, "not_needed = not_needed | {INDEX}", "pass"),
    (MERGED, "in adapter.shapes:\n", "in ():\n"),
    (MERGED, "if not _is_copy(", "if False and not _is_copy("),
    (MERGED, "coarser = min(", "coarser = max("),
    (MERGED, " if name not in copies}", "}"),
    (FRAME, 'if "speculators_config" in config', "if False"),
    (VLLM, "if not self.llm.reset_prefix_cache()", "if False"),
    (VLLM, 'any(self.llm.collective_rpc("guard_broken"))', "False"),
    (VLLM, "if len(outputs) != len(jobs) or ends", "if len(outputs) != len(jobs)"),
    (VLLM, "if len(outputs) != len(jobs) or ends", "if ends"),
    (VLLM, 'f"failed with {type(error).__name__}"', 'f"failed with {error}"'),
    # What a server is made to load, and what one proves that loads by itself.
    (SERVED, "if frame.tied or started_with.tied:", "if frame.tied:"),
    (SERVED, "if frame.tied or started_with.tied:", "if started_with.tied:"),
    (SERVED, "if frame.digest != started_with.digest:", "if False:"),
    (SERVED, "        refuse_not_finite(wrong, shown)\n", ""),
    (SERVED, "nothing_else=True, ", ""),
    (SERVED, "            _empty_the_cache(server)\n", ""),
    (
        SERVED,
        'if _is_success(_ask(server, "POST", "reset_prefix_cache")):',
        'if _ask(server, "POST", "reset_prefix_cache"):',
    ),
    (SERVED, 'said.get("success") is True', 'said.get("success", True)'),
    (SERVED, "for tried in range(RESET_TRIES):", "for tried in range(1):"),
    (SERVED, "str(staged.path.absolute())", "str(request.path)"),
    (SERVED, "not isinstance(root, str) or not Path(root).is_dir()", "root is None"),
    (SERVED, "if response.status_code == httpx.codes.OK:", "if True:"),
    (
        SERVED_BY,
        "                self._served.load(staged, request, self._headers())\n",
        "                pass\n",
    ),
    (SERVED_BY, "staged is None and request.pass_index == 0", "request.pass_index == 0"),
    (SERVED_WHERE, "if self.load_checkpoints and not is_loopback(host):", "if False:"),
    (TAKEN, "        takes = self._settings.takes_checkpoints\n", "        takes = False\n"),
    (SAID, "        if sampling.temperature > 0:\n", "        if False:\n"),
    (SAID, "                temperature=0.0,\n", "                temperature=1.0,\n"),
    (SAID, "items[:GREEDY_ITEMS]", "items"),
    (SAID, " and request.pass_index == 0", ""),
    (PROCESS, "isinstance(error, _LAST) or ", ""),
    (
        PROCESS,
        "not isinstance(error, HeldoutError) or evaluation.over",
        "not isinstance(error, HeldoutError)",
    ),
    (PROCESS, "            if evaluation.over:\n", "            if False:\n"),
    (AGAIN, 'if response.get("error", response).get("over"):', "if False:"),
    (VLLM, "        if self.rests:\n", "        if True:\n"),
    (VLLM, "        self.over = not self.asleep\n", ""),
    (VLLM, "if on_cuda() and self.sleeps and", "if self.sleeps and"),
    (VLLM, "if on_cuda() and self.sleeps and", "if on_cuda() and"),
    (VLLM, "self.sleeps and not self.over:", "self.sleeps:"),
    (VLLM, '                self.llm.wake_up(tags=["weights"])\n', "                pass\n"),
    (VLLM, 'if self.asleep and not self.llm.wake_up(tags=["kv_cache"]):', "if False:"),
    (VLLM, "            self.asleep = False\n", ""),
    (PROCESS, '(StartAgainError, "again"), ', ""),
    (
        AGAIN,
        "            except StartAgainError:\n                self._clear_stages()\n",
        "            except StartAgainError:\n",
    ),
    (ASKING, "item.system_prompt is not None or ", ""),
    (ASKING, ' or own[0]["role"] == "system"', ""),
    (
        ASKING,
        "{**(settings.chat_template_kwargs or {}), **(item.chat_template_kwargs or {})}",
        "item.chat_template_kwargs or settings.chat_template_kwargs or {}",
    ),
    (
        ASKING,
        "settings.answer_after if item.answer_after is None else item.answer_after",
        "settings.answer_after",
    ),
    (ASKING, "return own or None", "return own or settings.answer_after"),
    (ASKING, "text.rpartition(mark)", "text.partition(mark)"),
    (ASKING, "answer if found else None", "answer"),
    (ASKING, "if talk or template_kwargs(item, settings)", "if talk"),
    (ANSWERS, "Graded(0.0) if answer is None else", "Graded(1.0) if answer is None else"),
    (
        ANSWERS,
        "None if made.truncated and not self._settings.score_truncated else made.answer",
        "made.answer",
    ),
    (ANSWERS, "made.truncated and not self._settings.score_truncated", "made.truncated"),
    (ANSWERS, "self._answer(made) is None for", "made.answer is None for"),
    (ANSWERS, "asked = [(item, answer, text)", "asked = [(item, text, text)"),
    (ANSWERS, "[(item, made.text) for item", '[(item, made.answer or "") for item'),
    (SCORERS, "return {WHOLE: whole} if self.takes_whole", "return {WHOLE: ''} if self.takes_whole"),
    (ITEM, "if self.system_prompt else []", "if False else []"),
    (SHARES, "None if None in ends else", ""),
    (SHARES, "if answer_after(item, settings)]", "if True]"),
    (ENDPOINT, "if text is None and (truncated or", "if text is None and (False or"),
    (ENDPOINT, " and known and end in _ENDED", ""),
    (ENDPOINT, "if mark and thought and mark not in text", "if mark and thought"),
    # What a server was started with.
    (SERVED, "if self._started is None or self._started[0] != files:", "if self._started is None:"),
    (SERVED, "if self._started is None or self._started[0] != files:", "if True:"),
    # A text that ends a completion.
    (ASKING, "text[: min(ends)]", "text[: ends[0]]"),
    (ASKING, "place + len(one) if self.kept else place", "place"),
    (ASKING, "place + len(one) if self.kept else place", "place + len(one)"),
    (ASKING, "kept=not settings.stop", "kept=False"),
    (ASKING, "kept=not settings.stop", "kept=True"),
    (CODEC, "truncated and ended is None", "truncated"),
    (CODEC, "answer = answer_in(text, mark)", "answer = answer_in(whole, mark)"),
    (CODEC, "answer_in(text if ended is None else ended, mark)", "answer_in(text, mark)"),
    (SAID, "text, truncated = ended, False", "text = ended"),
    (SAID, "if self._settings.stop:", "if False:"),
    (SAID, "if self._settings.stop:", "if True:"),
    (SAID, "if sampling.stop and self._served is not None:", "if sampling.stop:"),
    (SERVED_BY, "if sampling.stop and self._served is not None:", "if self._served is not None:"),
    (SERVED_BY, "if sampling.stop and self._served is not None:", "if False:"),
    (SERVED_BY, ', "include_stop_str_in_output": True', ""),
    (CONFIG, '("min_p", "stop") if', '("min_p",) if'),
    (CONFIG, '("min_p", "stop") if', '("stop",) if'),
    (CONFIG, " if getattr(self.evaluator, name)}", "}"),
    (CONFIG, 'if self.on_scorer_timeout == "wrong":', "if True:"),
    (CONFIG, 'if self.on_scorer_timeout == "wrong":', "if False:"),
    (CONFIG, '{"scorer_timeout_seconds", "on_scorer_timeout"}', '{"on_scorer_timeout"}'),
    (EVALUATION, 'if self.on_scorer_timeout == "wrong" and', "if False and"),
    (COPIES, "if request.pass_index and copied and", "if copied and"),
    (COPIES, "copied[0] == request.checkpoint and ", ""),
    (COPIES, " and copied[1].path.is_dir():", ":"),
    (COPIED, "            if not self._repeats(request):\n", "            if True:\n"),
    (COPIED, "            if not self._repeats(request):\n", "            if False:\n"),
    (COPIED, "and request.pass_index > 0 and request.checkpoint == copied", "and request.pass_index > 0"),
    (STAGING, "if adapter.WEIGHTS in shards:", "if False:"),
    (TOLD, "super().__init__(escaped(message))", "super().__init__(message)"),
    (ENDS, "if type(one) is not int]", "if False]"),
    (ENDS, "if type(one) is not int]", "if one and type(one) is not int]"),
    (ENDS, " if one is not None]", "]"),
    (ENDS, "if said is not None and type(said) is not int:", "if False:"),
    # What a checkpoint names outside itself.
    (CLEANED, "        drop_named_files(staged.path)  # not before", "        # not before"),
    (
        CLEANED,
        "    with failing_as(FailureKind.CHECKPOINT):\n        target",
        "    drop_named_files(request.path)\n    with failing_as(FailureKind.CHECKPOINT):\n        target",
    ),
    # What is read where.
    (STAGING, "matters(n) and n not in not_needed", "n not in not_needed"),
    (STAGING, "return MAX_CONFIG_BYTES if", "return MAX_SMALL_BYTES if"),
    (STAGING, "if _is_configuration(name) else MAX_SMALL_BYTES", "if True else MAX_SMALL_BYTES"),
    (STAGING, 'name.endswith(".json") and not', "not"),
    (STAGING, " and not name.startswith(_LARGE)", ""),
    (STAGING, '("tokenizer.json", "vocab", ', '("vocab", '),
    (STAGING, '"tokenizer.json", "vocab", ', '"tokenizer.json", '),
    (STAGING, '"vocab", "tekken", ', '"vocab", '),
    (CHILD_FILE, "evaluation.pins if message.get(PINS) else evaluation.run", "evaluation.run"),
    (HEADER, 'data.count(b"{") > MAX_TENSORS + 2 or ', ""),
    (HEADER, 'data.count(b"{") > MAX_TENSORS + 2 or ', 'data.count(b"{") > MAX_TENSORS + 3 or '),
    (HEADER, ' or data.count(b",") + data.count(b"[") > 8 * MAX_TENSORS:', ":"),
    (HEADER, 'data.count(b",") + data.count(b"[")', 'data.count(b",")'),
    (NAMED_FILES, '"config.json", "tokenizer_config.json"', '"tokenizer_config.json"'),
    (NAMED_FILES, '"tokenizer_config.json", "special_tokens_map.json"', '"special_tokens_map.json"'),
    (NAMED_FILES, ', "special_tokens_map.json")', ")"),
    (NAMED_FILES, "    _rewrite(copy / _TOKENIZER, _with_its_own_vocabulary)\n", ""),
    (
        NAMED_FILES,
        "if (changed := change(content)) != content:",
        "if (changed := change(content)) is not None:",
    ),
    (NAMED_FILES, "(FileNotFoundError, ValueError)", "FileNotFoundError"),
    (NAMED_FILES, "[without_files(one) for one in value]", "[*value]"),
    (NAMED_FILES, "v if k in _THINGS else without_files(v)", "v"),
    (NAMED_FILES, "v if k in _THINGS else without_files(v)", "without_files(v)"),
    (NAMED_FILES, " and not isinstance(value, float))", ")"),
    (NAMED_FILES, " and not isinstance(value, float))", " and isinstance(value, str))"),
    (NAMED_FILES, " or (key.endswith(_ENDINGS) and not isinstance(value, float))", ""),
    (NAMED_FILES, "key == _POSITIONS or ", ""),
    (NAMED_FILES, "not isinstance(value, dict | list)", "isinstance(value, str)"),
    (NAMED_FILES, "not isinstance(value, dict | list)", "True"),
    (NAMED_FILES, "not isinstance(tokenizer, dict) or not", "not"),
    (STAGING, "if size > _most(name))", "if False)"),
    (STAGING, "if len(sizes) > MAX_SMALL_FILES or", "if"),
    (STAGING, "or sum(sizes.values()) > MAX_SMALL_BYTES_IN_ALL", ""),
    (STAGING, "if left < 0:", "if False:"),
    (STAGING, "if free < needed:", "if False:"),
]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_broken_rule_fails_a_test(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__, ["torch", "transformers", "safetensors.torch"]) == ""

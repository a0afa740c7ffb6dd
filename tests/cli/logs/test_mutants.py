"""Each rule of the follower and of its table that is broken on purpose fails a test that stands beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Mutant, Rule, survivors

CLI = Path(__file__).parents[1]
LAYOUTS = Rule("guard_follow", "layouts.py", CLI / "logs" / "test_layouts.py")
NAMES = Rule("guard_follow", "names.py", CLI / "logs" / "test_names.py")
TABLE = Rule("guard_core", "frameworks.py", CLI / "logs" / "test_names.py")
LATE = CLI / "follow" / "test_late.py"
STEPS = Rule("guard_follow", "steps.py", LATE)
FOLLOWER = Rule("guard_follow", "follower.py", LATE)
SOURCE = Rule("guard_follow", "source.py", LATE)
TAIL = Rule("guard_follow", "tail.py", LATE)
EVENTS = Rule("guard_follow", "events.py", LATE)
EVENT = Rule("guard_follow", "records.py", LATE)
PIPED = Rule("guard_follow", "source.py", CLI / "follow" / "test_standard_input.py")
FOLLOWED = CLI / "follow" / "test_follower.py"
CUT = Rule("guard_follow", "records.py", FOLLOWED)
CUT_TAIL = Rule("guard_follow", "tail.py", FOLLOWED)
SETTINGS = Rule("guard_follow", "settings.py", CLI / "logs" / "test_settings.py")
STARTING = Rule("guard_cli", "starting.py", CLI / "logs" / "test_names.py")
SETTING = Rule("guard_core", "frameworks.py", CLI / "logs" / "test_settings.py")
HPARAMS = Rule("guard_follow", "records.py", CLI / "logs" / "test_settings.py")
RECORDS = Rule("guard_follow", "records.py", CLI / "logs" / "test_records.py")
BROKEN = Rule("guard_cli", "logs/readers.py", CLI / "logs" / "test_broken.py")
PRINTED_TESTS = CLI / "logs" / "test_printed.py"
PRINTED = Rule("guard_cli", "logs/printed.py", PRINTED_TESTS)
PRINTED_READ = Rule("guard_cli", "logs/readers.py", PRINTED_TESTS)
READ = Rule("guard_cli", "logs/readers.py", CLI / "logs" / "test_readers.py")
MLFLOW = Rule("guard_cli", "logs/mlflow.py", CLI / "logs" / "test_mlflow.py")
EXPORTS_TESTS = CLI / "logs" / "test_mlflow_exports.py"
EXPORTS = Rule("guard_cli", "logs/mlflow.py", EXPORTS_TESTS)
EXPORTS_FOUND = Rule("guard_cli", "logs/readers.py", EXPORTS_TESTS)
ATTEMPTS = Rule("guard_follow", "starts.py", CLI / "follow" / "test_attempts.py")
STARTS_TESTS = CLI / "follow" / "test_starts.py"
STARTS = Rule("guard_follow", "starts.py", STARTS_TESTS)
STARTS_STEPS = Rule("guard_follow", "steps.py", STARTS_TESTS)
STARTS_READ = Rule("guard_follow", "source.py", STARTS_TESTS)
STARTS_FILES = Rule("guard_follow", "events.py", STARTS_TESTS)
TOLD_TESTS = CLI / "replay" / "test_told.py"
TOLD_READ, TOLD_FOLDED = (Rule("guard_cli", f"replay/{name}.py", TOLD_TESTS) for name in ("run", "fold"))
TOLD_KEPT = Rule("guard_service", "store/history.py", TOLD_TESTS)
STARTS_REPLAYED = Rule("guard_cli", "replay/attempts.py", STARTS_TESTS)
WHOLE_ROWS = Rule("guard_core", "frameworks.py", LATE)
STATES = Rule("guard_follow", "states.py", LATE)
BEFORE = Rule("guard_follow", "before.py", LATE)
READ_LATE = Rule("guard_cli", "logs/readers.py", LATE)
REPLAYED_LATE = Rule("guard_cli", "replay/run.py", LATE)
BESIDE = Rule("guard_cli", "replay/attempts.py", LATE)
PLACED = Rule("guard_follow", "starts.py", LATE)
HALF = CLI / "follow" / "test_half_written.py"
HALF_READ = Rule("guard_follow", "follower.py", HALF)
HALF_LINE = Rule("guard_follow", "records.py", HALF)
DAMAGED = CLI / "follow" / "test_damaged.py"
DAMAGED_RECORD = Rule("guard_follow", "records.py", DAMAGED)
DAMAGED_FILE = Rule("guard_follow", "source.py", DAMAGED)
BENEATH_TESTS = CLI / "follow" / "test_beneath.py"
BENEATH = Rule("guard_follow", "beneath.py", BENEATH_TESTS)
MARKED = Rule("guard_follow", "tail.py", BENEATH_TESTS)
SYMPTOMS = CLI / "replay" / "test_symptoms.py"
SEEN = Rule("guard_cli", "replay/symptoms.py", SYMPTOMS)
SEEN_LINEAGE = Rule("guard_core", "guard_log.py", SYMPTOMS)
SEEN_IN_RUN = Rule("guard_cli", "replay/run.py", SYMPTOMS)
SEEN_NAMES = Rule("guard_follow", "names.py", SYMPTOMS)
SEEN_FIGURES = Rule("guard_core", "frameworks.py", SYMPTOMS)
SEEN_KEPT = Rule("guard_cli", "logs/keep.py", SYMPTOMS)
SEEN_READING = Rule("guard_cli", "logs/mlflow.py", SYMPTOMS)
SEEN_TABLE = Rule("guard_cli", "logs/table.py", SYMPTOMS)
SEEN_BY_COMMAND = Rule("guard_cli", "replay/command.py", SYMPTOMS)
SEEN_REPORT = Rule("guard_cli", "replay/report.py", SYMPTOMS)
FAIL_ON = CLI / "replay" / "test_fail_on.py"
FAILS = Rule("guard_cli", "replay/command.py", FAIL_ON)
UNJUDGED = Rule("guard_cli", "replay/outcomes.py", FAIL_ON)
REPORTED = Rule("guard_cli", "replay/unjudged.py", FAIL_ON)
CHECKED = Rule("guard_cli", "check/gather.py", CLI / "check" / "test_gather.py")
CHECKED_ROWS = Rule("guard_cli", "check/rows.py", CLI / "check" / "test_rows.py")

MUTANTS: tuple[Mutant, ...] = (
    # Whose checkpoints are whole, and whose they are.
    (LAYOUTS, r"|model\d+_\d+\.safetensors", ""),
    (LAYOUTS, '_LIKE_OTHERS = ("slime", "ROLL")', '_LIKE_OTHERS = ("slime",)'),
    # What `rlguard check` says of a log that is to be followed.
    (CHECKED, "if not path.resolve().is_relative_to(root.resolve())]", "if False]"),
    (CHECKED, "(log, saves, config) if", "(log, saves) if"),
    (CHECKED, " or _why_not_followed(config)", ""),
    (CHECKED, "if log.is_dir() and not log.is_symlink():", "if log.is_dir():"),
    (CHECKED, "        return str(error)\n    except OSError", "        return None\n    except OSError"),
    (CHECKED, "checkpoints is not None and checkpoints.resolve() != saves.resolve()", "False"),
    (CHECKED_ROWS, "if followed.problem is not None:", "if False:"),
    (CHECKED_ROWS, "if followed.elsewhere is not None:", "if False:"),
    # What a process that is confined opens.
    (BENEATH, "if _root is not None and not _place(handle).is_relative_to(_root):", "if False:"),
    (BENEATH, 'return Path("/")', "return _root or Path()"),
    (BENEATH, "if not stat.S_ISREG(os.fstat(handle).st_mode):", "if False:"),
    (BENEATH, "and _root is None else os.O_NOFOLLOW", "or _root else 0"),
    (BENEATH, "while waiting and left > 0:", "while waiting:"),
    (BENEATH, "zip(range(MAX_ENTRIES), found, strict=False)", "enumerate(found)"),
    (BENEATH, "if entry.is_dir(follow_symlinks=False):", "if entry.is_dir():"),
    (LAYOUTS, "    except PermissionError:\n", "    except ZeroDivisionError:\n"),
    # What lay there before the run, and what a guard has lost.
    (ATTEMPTS, "0 if known or lost is None else lost + 1", "0"),
    (ATTEMPTS, "0 if known or lost is None", "0 if lost is None"),
    (MARKED, "_mark(self._fd, before.size) == before:", "before.size >= 0:"),
    (MARKED, "self._offset = before.size", "self._offset = 0"),
    (LAYOUTS, "return None if layout.known_by and not (path / layout.known_by).is_file() else 0", "return 0"),
    (LAYOUTS, "    if layout.merged:\n        yield path.with_name(path.name + layout.merged)\n", ""),
    (LAYOUTS, "newest >= step else None", "newest >= 0 else None"),
    (LAYOUTS, "settled = newest <= marked or", "settled = layout.marks or"),
    (LAYOUTS, "or now - written / 1e9 >= quiet", "or not layout.marks"),
    (LAYOUTS, "OLD_MARK_SECONDS if layout.latest else QUIET_SECONDS", "QUIET_SECONDS"),
    (LAYOUTS, "if layout.latest else max(_when(file)", "if layout.marker else max(_when(file)"),
    (LAYOUTS, "return not any(_SHARD.fullmatch(name) for name in there)", "return True"),
    (LAYOUTS, "if settled and _whole(model) else None", "if settled else None"),
    (LAYOUTS, "values()) <= there", "values()) is not None"),
    (LAYOUTS, "size == 8 + length + max(ends, default=0)", "size >= 8"),
    (LAYOUTS, "if entry.is_dir(follow_symlinks=False):", "if entry.is_dir():"),
    (LAYOUTS, "if length > min(MAX_HEADER, size):", "if False:"),
    (NAMES, "if needs.fits(settings.get(needs.key, needs.default)):", "if needs.key in settings:"),
    (NAMES, "settings.get(needs.key, needs.default)", 'settings.get(needs.key, "")'),
    # Of which settings of the run a KL is a token mean, and where they stand.
    (TABLE, 'Setting("token_level_loss", ("true",)),', ""),
    (TABLE, 'Setting("token_level_loss", ("true",)', 'Setting("token_level_loss", ("true",), "true"'),
    (TABLE, 'Setting("reference_policy_kl_penalty"),', ""),
    (TABLE, 'Setting("use_kl_in_reward", ("false",), default="false"),', ""),
    (
        TABLE,
        'Setting("reference_policy_kl_type", ("k1", "k3")',
        'Setting("reference_policy_kl_type", ("k3",)',
    ),
    (TABLE, 'Setting("kl.estimator", ("k1", "k3")),', ""),
    (TABLE, 'Setting("kl.estimator", ("k1", "k3")', 'Setting("kl.estimator", ("k1", "k3"), "k1"'),
    (TABLE, 'Setting("kl.init_coef"),', ""),
    (TABLE, 'Setting("kl.use_loss", ("false",), default="false"),', ""),
    (TABLE, 'Setting("kl_estimator_type", ("k1", "k3")', 'Setting("kl_estimator_type", ("k1", "k3"), "k3"'),
    (TABLE, 'Setting("use_kl_loss", ("true",), default="true"),', ""),
    (TABLE, 'Setting("kl_in_reward", ("false",))', 'Setting("kl_in_reward", ("false",), default="false")'),
    (
        WHOLE_ROWS,
        'monitor",\n        whole_rows=True,',
        'monitor",',
    ),
    (WHOLE_ROWS, '--add_version false`",\n        whole_rows=True,', '--add_version false`",'),
    (TABLE, '        kl_needs={"kl": (SWIFT_KL_IN_REWARD,)},\n', ""),
    (TABLE, '        kl_needs={"kl": (replace(SWIFT_KL_IN_REWARD, default="false"),)},\n', ""),
    (NAMES, "for f in (framework, *marked) if f is not None]", "for f in (framework,) if f is not None]"),
    (SETTINGS, '"experiment_config.json", "args.json")', '"experiment_config.json")'),
    (TABLE, "else _number(value) > 0", "else _number(value) >= 0"),
    (SETTING, "not isinstance(value, bool) and _number(value) >= 0", "_number(value) >= 0"),
    (SETTING, " and _number(value) >= 0", ""),
    (SETTING, "_FLAGS.issuperset(self.values) and isinstance", "isinstance"),
    (SETTING, "_FLAGS.issuperset(self.values) and isinstance(value, int | float)", "False"),
    (SETTINGS, "name[-len(wanted) :] == wanted", "name[-1] == wanted[-1]"),
    (SETTINGS, "if of_actor or setting.key not in found:", "if setting.key not in found:"),
    (SETTINGS, 'or "actor" in parts', "or False"),
    (SETTINGS, "(*above, *parts)[-_MOST_PARTS:]", '(*above, ".".join((*above, *parts))[-99:], *parts)'),
    (SETTINGS, 'parts = str(key).split(".")', "parts = [str(key)]"),
    (SETTINGS, "return {} if near is None else _hparams(near, is_old)", "return {}"),
    (SETTINGS, "    if written is not None:", "    if False:"),
    (
        SETTINGS,
        "return lambda: _read_if_it_can_be(written, say)",
        "return _read_if_it_can_be(written, say).copy",
    ),
    (
        SETTINGS,
        "        return _read(file)\n    except InputError as error:",
        "        return _read(file)\n    except ZeroDivisionError as error:",
    ),
    *((SETTINGS, f"{name}, ", "") for name in ("LookupError", "AttributeError", "ArithmeticError")),
    (SETTINGS, "(ValueError, LookupError", "(LookupError"),
    (SETTINGS, "        if settings:", "        if True:"),
    (SETTINGS, "        if settings:", "        if False:"),
    (SETTINGS, "(file for file in files if not is_old(file))", "files"),
    (SETTINGS, "[-MAX_FILES:]", "[:MAX_FILES]"),
    (SETTINGS, "if all(other.get(key) == value for other in said)", ""),
    (SETTINGS, "    if not near.is_dir() and not near.name.startswith(EVENTS):\n        return {}\n", ""),
    (SETTINGS, "if near.is_dir() else near.parent, EVENTS)", ", EVENTS)"),
    (SETTINGS, "            while left > 0 and (data", "            while (data"),
    (HPARAMS, "                if not tag.startswith(_HPARAMS):\n", "                if False:\n"),
    (HPARAMS, 'return name, float(struct.unpack("<d", value)[0])', "return name, None"),
    (NAMES, 'if quantity == "reward" and len(several) > 1', "if False"),
    (NAMES, "        if len(there) > 1:\n", "        if False:\n"),
    (TABLE, "len(parts) == len(wanted) and all(", "all("),
    (NAMES, "by_bare.keys().isdisjoint(f.marks), ", ""),
    (TABLE, '        marks=("actor_lr",),  # of releases whose other names were TRL\'s\n', ""),
    (TABLE, 'marks=("global_step/max_steps", "train_speed(s/it)")', 'marks=("global_step/max_steps",)'),
    (TABLE, "`logging.jsonl`, with `--add_version false`", "`logging.jsonl`"),
    (TABLE, "--output_dir {folder} --add_version false", "--output_dir {folder}"),
    (
        NAMES,
        "why_no_token_mean(setting, settings) for setting in needs)",
        "why_no_token_mean(setting, settings) for setting in needs[:1])",
    ),
    (NAMES, '({"kl_loss"}, f"stands', '({"no"}, f"stands'),
    (NAMES, "and not _is_statistic(name)]", "]"),
    (NAMES, "bool(_words(name) & _NO_SCORE) or", ""),
    (NAMES, ' | {"ci", "lcb"', ' | {"lcb"'),
    (NAMES, '"median", "iqr", "mad", "min", "max",', '"iqr", "mad", "min",'),
    (NAMES, " or last in _ENDS", ""),
    (NAMES, "last in _ENDS", "not _ENDS.isdisjoint(words)"),
    (NAMES, " or any(map(_QUANTILE.fullmatch, words))", ""),
    (NAMES, "_QUANTILE.fullmatch, words", "_QUANTILE.match, words"),
    (NAMES, 're.compile(r"[pq]\\d{1,4}|\\d{1,3}th")', 're.compile(r"[pq]\\d*")'),
    (TABLE, "--load {path} --save {folder}", "--ref-load {path} --save {folder}"),
    (STARTING, "if framework is None or framework.start or not", "if framework is None or not"),
    (STARTING, '`{note}"', '`"'),
    (NAMES, "if len(name) <= MAX_NAME]", "]"),
    (NAMES, " and not words & _DURATIONS", ""),
    (RECORDS, "return name[: MAX_NAME + 1]", "return name"),
    (
        RECORDS,
        'start, end = text.rfind(_ROLL + "{"), text.rfind("}")',
        "start, end = text.rfind(_ROLL), len(text)",
    ),
    (RECORDS, '"" if start < 0 else', '"" if start < 0 or end < start else'),
    # A log of which a part cannot be read is not judged.
    (
        BROKEN,
        "    if bad:\n        raise _bad_lines(path, bad)\n    return numbers, rows\n",
        "    return numbers, rows\n",
    ),
    (
        PRINTED,
        "    if not end:\n            raise",
        "    if not end:\n            continue\n            raise",
    ),
    (PRINTED, """BEGINS = b"{'loss': \"""", """BEGINS = b"{'\""""),
    (PRINTED, "': '?([^", "': ([^"),
    (PRINTED, "for part in line.split(BEGINS)[1:]", "for part in line.split(BEGINS)[1:2]"),
    (
        PRINTED_READ,
        "if not any(map(names.is_reward, {name for row in rows for name in row})):",
        "if not rows:",
    ),
    (
        PRINTED_READ,
        "if not any(map(names.is_reward, {name for row in rows for name in row})):",
        "if rows or 1:",
    ),
    (PRINTED_READ, "        raise _bad_lines(path, bad)\n    note = (", "        pass\n    note = ("),
    (PRINTED_READ, '"step": len(rows) + n', '"step": n'),
    (PRINTED_READ, "return replace(table, note=note)", "return table"),
    (READ, "if len(documents) > 1 or not isinstance(rows, list)", "if not isinstance(rows, list)"),
    (READ, "or not all(isinstance(row, dict) for row in rows):", "or not rows:"),
    (READ, "    rows = [flatten(row) for row in rows]\n    chunks", "    chunks"),
    (BROKEN, "    if unread := events.bad - events.too_long:\n", "    if unread := 0:\n"),
    (BROKEN, "enumerate(file, start=1):\n            before", "enumerate(file):\n            before"),
    (BROKEN, "for row in rows], numbers, keep,", "for row in rows], range(1, len(rows) + 1), keep,"),
    (BROKEN, "return plain(text if", "return str(text if"),
    (BROKEN, "    if len(line) > MAX_LINE:\n", "    if False:\n"),
    # Starts of a trainer that write into one run of MLflow.
    (MLFLOW, "                starts.append({})\n", ""),
    (MLFLOW, "                newest = {}\n", ""),
    (MLFLOW, "is_told = all(a[:2] <= b[:2] for", "is_told = True or all(a[:2] <= b[:2] for"),
    (MLFLOW, "all(a[:2] <= b[:2] for", "all(a[0] <= b[0] for"),
    (MLFLOW, "for name in judged for a, b in", "for name in series for a, b in"),
    (MLFLOW, "        lines.sort(key=lambda line: line[1])\n", "        pass\n"),
    (MLFLOW, "if step in values and name in judged:", "if False:"),
    (MLFLOW, "if step in values and name in judged:", "if step in values:"),
    # What MLflow exports of a run.
    (EXPORTS, "    if len(runs) > 1:\n", "    if False:\n"),
    (EXPORTS, "run or cells[label], cells[label]", "run, cells[label]"),
    (EXPORTS, 'run = part.get("run_id") or ""', 'run = ""'),
    (EXPORTS, 'if "Group" in header:', "if False:"),
    (
        EXPORTS,
        "    if unfinished := [name for name, more in goes_on.items() if more]:\n",
        "    if unfinished := []:\n",
    ),
    (EXPORTS, "goes_on.get(name, True) and", ""),
    (EXPORTS, "    if found and broken:\n", "    if False:\n"),
    (EXPORTS, "sorted(dict.fromkeys(lines), key=lambda line: line[:2])", "list(dict.fromkeys(lines))"),
    (EXPORTS, "sorted(dict.fromkeys(lines), key", "sorted(lines, key"),
    (EXPORTS, "if count == POINTS)", "if False)"),
    (EXPORTS, "if count == POINTS)", "if count >= POINTS)"),
    (EXPORTS, "return cell[1:] if cell.startswith(_FORMULA) else cell", "return cell"),
    (EXPORTS, "if row and row != header)", "if row)"),
    (EXPORTS, "if part and not _is_page(part)]:", "if False]:"),
    (EXPORTS, "if part and not _is_page(part)]:", "if not _is_page(part)]:"),
    (EXPORTS, "if abs(value) == sys.float_info.max else value", "if False else value"),
    (EXPORTS, "    if math.isnan(value):\n", "    if False:\n"),
    (EXPORTS, "    if isinstance(value, bool):\n", "    if False:\n"),
    (EXPORTS, "    if abs(number) >= LARGEST or (", "    if ("),
    (EXPORTS, "(isinstance(value, float) and number != value)", "False"),
    (
        EXPORTS,
        "    if not math.isfinite(number := _number(value)):\n",
        "    if not (number := _number(value)):\n",
    ),
    (EXPORTS, "*((CliError,) if keep.is_figure(entry.metric) else ())", "*()"),
    (EXPORTS, "last = not has_step and (", "last = ("),
    (EXPORTS, "(RUN_ID in found or of_search_runs)", "RUN_ID in found"),
    (EXPORTS, 'run = found.get("run", found)', "run = found"),
    (EXPORTS, "if not isinstance(entry.metric, str):", "if False:"),
    (EXPORTS_FOUND, "        mlflow.refuse_last_values(path, header)\n", ""),
    (EXPORTS_FOUND, "        mlflow.refuse_last_values(path, state)\n", "        pass\n"),
    (EXPORTS_FOUND, "    if exports := mlflow.exports_in(path):\n", "    if exports := []:\n"),
    (EXPORTS_FOUND, "next(iter(_csv_rows(path, reader, 1)), [])", "next(reader, [])"),
    (
        SETTINGS,
        "class Plain(yaml.SafeLoader):\n        def flatten_mapping(",
        "class Plain(yaml.SafeLoader):\n        def never_called(",
    ),
    (STEPS, "if len(record) > _OF_AN_EVENT and", "if"),
    (RECORDS, '("global_step/max_steps", "iteration")', '("global_step/max_steps",)'),
    # Of which start of the trainer a step is.
    (ATTEMPTS, "if _agree(there, step):\n            self._repeated", "if True:\n            self._repeated"),
    (ATTEMPTS, "a is None or b is None or a == b", "a == b"),
    (ATTEMPTS, "if step.step not in known]", "]"),
    (ATTEMPTS, "goes_on = step.step > max(self._known[newest])", "goes_on = True"),
    (ATTEMPTS, "min(steps) <= step <= max(steps)", "min(steps) <= step"),
    (PLACED, "return self._last >= step", "return True"),
    (PLACED, "if on_its_way else newest", "if False else newest"),
    (STARTS, "        self._held.append(step)\n", ""),
    (STARTS, "if self._held and step.step <= self._held[-1].step:", "if False:"),
    (STARTS, "return [] if step.step == at else self._start", "return self._start"),
    (STARTS, "self._begins, self._rotated, self._last = True, rotated, -1", "self._rotated = rotated"),
    (STARTS, "before_it_began = step.step < self._lowest", "before_it_began = step.step < 0"),
    (STARTS, "(self._another_file and step.step < self._last)", "False"),
    (STARTS, "if a > current or (a < current and self._begins_with(a, steps[0]))", "if a > current"),
    (STARTS, "return self._go_to(attempt, [step])", "return self._go_to(attempt, steps)"),
    (STARTS, "bool(pairs) and all(", "all("),
    (STARTS_STEPS, "                self.attempts.another_file()\n", "                pass\n"),
    (STARTS_READ, "        yield AGAIN\n", ""),
    (STARTS_READ, "in in_order([", "in sorted(["),
    (STARTS_FILES, "if first == start]", "]"),
    (STARTS_FILES, "(begun.get(path) != start, path.name)", "path.name"),
    (STARTS_FILES, "begun.get(path) != start", "begun.get(path, start) != start"),
    (STARTS_REPLAYED, "    new[list(begins)] = True\n", ""),
    (STARTS_REPLAYED, "            starts.another_file()\n", "            pass\n"),
    (STARTS_REPLAYED, "    if whole_rows:\n", "    if False:\n"),
    # A line that is not whole, a record that is too long, a file that is none.
    (HALF_READ, "self._source.rest() if trainer_ended else ()", "self._source.rest()"),
    (HALF_LINE, "        self.bad += len(cut_off)\n", ""),
    (RECORDS, 'if line[at - 1 : at] in (b":", b",", b"[", b" "):', "if False:"),
    (RECORDS, "while tried < _MOST_TRIED and", "while"),
    (RECORDS, "(?<![^\\s\\d])step:", "step:"),
    (RECORDS, "if name in record and len(name) <= MAX_NAME:", "if False:"),
    (RECORDS, ".removeprefix(BOM)", ""),
    (DAMAGED_RECORD, "            if length > MAX_LINE:\n", "            if False:\n"),
    (DAMAGED_RECORD, "data[at:], max(0, at - len(data))", "data[at:], 0"),
    (DAMAGED_FILE, "if path not in self._damaged:", "if True:"),
    (DAMAGED_FILE, "        if self._damaged.issuperset(self._files):\n", "        if False:\n"),
    (DAMAGED_FILE, " + len(self._damaged)", ""),
    (STEPS, "        if not self._is_of_a_step(record):\n            return []\n", ""),
    (STEPS, "            return any(map(self._may_be_judged, record)) or", "            return True or"),
    (STEPS, "elif self._counts(name, value) and not self._counts(name, before):", "elif False:"),
    (STEPS, "elif self._counts(name, value) and not", "elif not"),
    (STEPS, " and not self._counts(name, before):", ":"),
    (STEPS, "and math.isfinite(read) and", "and"),
    (STEPS, " and (read >= 0 or not self._is_kl(name))", ""),
    (STEPS, "(read >= 0 or not self._is_kl(name))", "read >= 0"),
    (STEPS, '"kl" in known else self._columns is None and names.is_kl(name)', '"kl" in known else False'),
    (STEPS, "known = self._overrides if self._columns is None else", "known ="),
    (STEPS, "                if self._is_kl(name):  # it", "                if False:  # it"),
    (STEPS, 'name == self._overrides.get("kl_kind", "") or bare', "bare"),
    (STEPS, ' or bare(name) == "kl_kind"', ""),
    (
        STEPS,
        "in WHOLE\n        return whole_row and self._counts(",
        "in WHOLE\n        return whole_row or (",
    ),
    (STEPS, "return whole_row and self._counts(reward, self._values.get(reward))", "return whole_row"),
    (STEPS, "return name in self._measured or names.is_judged(name)", "return names.is_judged(name)"),
    (STEPS, "overrides.items() if ours in _MEASURED}", "overrides.items()}"),
    (REPLAYED_LATE, "self._judged()[usable],", "np.ones(len(usable), dtype=bool),"),
    (BESIDE, "return _beside(step, attempt, rows) if named is None", "return attempt if named is None"),
    (STEPS, "if self._missing():", "if False:"),
    (STEPS, "kind or KlKind.ABSENT)", "kind or KlKind.REF_TOKEN_MEAN)"),
    (PLACED, "if named is not None:", "if False:"),
    (FOLLOWER, "if key in self._evaluated and path in self._seen:", "if False:"),
    (FOLLOWER, "return False  # scored before", "pass  # scored before"),
    (FOLLOWER, "if not self._records:", "if False:"),
    (FOLLOWER, "not (self._seen or self._held)", "False"),
    (SOURCE, ">= QUIET_NS:", ">= 0:"),
    (PIPED, "StandardInput(_decoder(None, chosen)())", "StandardInput(ConsoleLines())"),
    (PIPED, 'raise InputError(f"standard input: {error}.") from None', "return"),
    (SOURCE, "for state in states(path) if not self._before.has(state)]", "for state in states(path)]"),
    (SOURCE, "yield from map(flatten, without(rows, self._old))", "yield from map(flatten, rows)"),
    (STATES, "return rows[max(begins, default=0) :]", "return rows[max(known.values()) :]"),
    (STATES, "max(begins, default=0)", "min(begins, default=0)"),
    (STATES, " and known.get(digest) == count)", ")"),
    (BEFORE, 'kept.get("histories", {})', 'kept["histories"]'),
    (BEFORE, "        if size > bytes_left:\n            continue\n", ""),
    (BEFORE, "        bytes_left -= size\n", ""),
    (BEFORE, "            rows_left -= len(rows)\n", ""),
    (BEFORE, "if 0 < len(rows) <= rows_left:", "if rows:"),
    (BEFORE, "key=written, reverse=True)", "key=written)"),
    (EVENTS, "if ended and len({file.parent for file in events}) > 1:", "if False:"),
    (EVENTS, "if ended and len({file", "if len({file"),
    (EVENTS, '    return True, "trainer_state', '    return False, "trainer_state'),
    (SOURCE, "self._before.histories, note)", "self._before.histories)"),
    (SOURCE, "new_run=self._new_run, note=note)", "new_run=self._new_run)"),
    (READ_LATE, "(note, table.note)", "(table.note,)"),
    (
        TAIL,
        'self._offset, self._last, self._anew = 0, b"", True\n        while',
        'self._offset, self._last = 0, b""\n        while',
    ),
    (CUT, 'else last.lstrip(b"\\0")', "else last"),
    (CUT, 'line = line.lstrip(b"\\0")', "line = line"),
    (CUT, "        other._header = header\n", ""),
    (CUT, "begins and not any(map(_is_number, cells))", "False"),
    (CUT_TAIL, "if stat.S_ISREG(now.st_mode) and now.st_size == 0:", "if False:"),
    (EVENTS, "        if not told[one].isdisjoint(told[other]):\n", "        if False:\n"),
    (EVENTS, "        if not told[one].isdisjoint(told[other]):\n", "        if True:\n"),
    (EVENTS, "return set(filter(is_judged, tags)) or tags", "return tags"),
    (EVENTS, "return set(filter(is_judged, tags)) or tags", "return set(filter(is_judged, tags))"),
    (EVENTS, "if file.parent in with_reward or not with_reward]", "]"),
    (EVENTS, "if file.parent in with_reward or not with_reward]", "if file.parent in with_reward]"),
    (SOURCE, "if self._compare(later) or _newest", "if _newest"),
    (SOURCE, "return theirs and not ours", "return theirs"),
    (SOURCE, "if self._folder is not None and theirs is ours:", "if self._folder is not None:"),
    (EVENTS, "if folders.isdisjoint(file.parent.parents)", ""),
    (EVENTS, "if first_step(file) is not None", ""),
    (EVENT, "and bare(tag) not in STEP_NAMES:", ":"),
    (
        SEEN_BY_COMMAND,
        "        report.show(Console(), run, named, symptoms_of(run))\n",
        "        report.show(Console(), run, named, symptoms_of(run))\n"
        "        if symptoms_of(run).symptoms:\n            raise typer.Exit(FAILED)\n",
    ),
    (
        SEEN_IN_RUN,
        "for values in rows.values.values():",
        "for values in (*rows.values.values(), *rows.figures.values()):",
    ),
    (SEEN_LINEAGE, "return order[step[order] < later]", "return order"),
    (SEEN_LINEAGE, "order = np.lexsort((step, attempt))", "order = np.arange(len(step))"),
    (SEEN, "plain(bare(column), MAX_NAME)", "column"),
    (SEEN, "np.where(run.armed_kl(), run.kl, np.nan)", "run.kl"),
    (SEEN, 'because["kl"] = f"the KL is', 'because["no"] = f"the KL is'),
    (SEEN_NAMES, "if len(named) > MOST_FIGURES:", "if False:"),
    (SEEN_NAMES, "for column in sorted(columns) if (figure", "for column in columns if (figure"),
    (SEEN_NAMES, 'whole or not bare(c).startswith("reward/")', "True"),
    (
        SEEN_NAMES,
        "figures |= {name: column for name, column in overrides",
        "{name: column for name, column in overrides",
    ),
    (SEEN_FIGURES, 'not part.endswith("/std")', "True"),
    (SEEN_FIGURES, "part not in NO_COMPONENTS", "True"),
    (SEEN_FIGURES, '.replace(" / ", "/")', ""),
    (SEEN_FIGURES, 'if fits(name, wanted)), "")', 'if False), "")'),
    (SEEN_FIGURES, '        "truncation_rate",\n', ""),
    (SEEN_FIGURES, '*("agg/all/*/is_truncated/mean", ', "*("),
    (SEEN_FIGURES, '"mean_gen_tokens_per_sample", "generate/avg_num_tokens", ', ""),
    (SEEN_NAMES, "and column not in several", ""),
    (SEEN_KEPT, "if len(self._figures) < names.MOST_FIGURES:", "if True:"),
    (
        SEEN_READING,
        "for name, values in series.items() if not keep.is_figure(name))",
        "for values in series.values())",
    ),
    (
        SEEN_READING,
        "UnicodeDecodeError) if keep.is_figure(name) else ())",
        "UnicodeDecodeError) if False else ())",
    ),
    (SEEN_KEPT, "if self._judged(column) or not figure_of(column):", "if not figure_of(column):"),
    (
        SEEN_TABLE,
        "_readable(values) if forgiving(name) else _floats",
        "_readable(values) if False else _floats",
    ),
    (SEEN_TABLE, "if found.ndim != 1:", "if False:"),
    (SEEN_REPORT, "if looked_for and not examined.symptoms", "if not examined.symptoms"),
    (SEEN_REPORT, "    if examined.unseen:\n", "    if False:\n"),
    # What a replay in CI fails for.
    (
        FAILS,
        "    if counted.level in failing:\n",
        "    if any(said.level in failing for said in outcomes):\n",
    ),
    (FAILS, "    if counted.level in failing:\n", "    if False:\n"),
    (FAILS, "(Level.FIRED, Level.WARNING, Level.UNKNOWN)", "(Level.FIRED, Level.WARNING)"),
    (FAILS, "        for sentence in named[0][1][0].inert:\n", "        for sentence in ():\n"),
    # What of a log nobody judged.
    (UNJUDGED, 'if found.fired or name == "step_monitor" or', "if found.fired or True or"),
    (UNJUDGED, 'if found.fired or name == "step_monitor"', 'if name == "step_monitor"'),
    (UNJUDGED, "return found if found.level is not Level.HEALTHY else", "return found if True else"),
    (REPORTED, "for folder in (path, path.parent)", "for folder in (path,)"),
    (REPORTED, "update=dict(ended.counts)", "update={}"),
    (REPORTED, " or ended.unjudged", ""),
    (REPORTED, "code == ExitCode.NOT_JUDGED and not counts", "not counts"),
    (REPORTED, "code == ExitCode.NOT_JUDGED and not counts", "code == ExitCode.NOT_JUDGED"),
    (REPORTED, "isinstance(found.get(name), int) for", "True for"),
    (TOLD_READ, 'truncated=known["truncated"],', ""),
    (TOLD_READ, 'unanswered=known["unanswered"],', ""),
    (TOLD_READ, 'unscored=known["unscored"],', ""),
    (TOLD_READ, 'timed_out=known["timed_out"],', ""),
    (TOLD_READ, "temperature=temperature,", "temperature=1.0,"),
    (TOLD_READ, "max_new_tokens=int(longest),", "max_new_tokens=2048,"),
    (TOLD_READ, "max_new_tokens=int(longest))", "max_new_tokens=None)"),
    (
        TOLD_READ,
        "replace(self.scored[row], attempt=attempt, step=0, pass_index=i)",
        "replace(self.scored[row], attempt=attempt, step=0, pass_index=i, sampling=None)",
    ),
    (TOLD_FOLDED, "judge.fold_checkpoint(_announced(run, evaluation))", "judge.fold_checkpoint()"),
    (TOLD_KEPT, 'limit is not None and "heldout" in line', "False"),
    (TOLD_KEPT, "if known.get(name) is not None", "if False"),
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_each_broken_rule_is_noticed(tmp_path: Path) -> None:
    assert survivors(MUTANTS, tmp_path, __file__) == ""

"""Tests of the tests: each mutant breaks one rule of the trainer's side, and a test of it must notice.

Every mutant is one edit of the source. To load torch and TRL takes longer than all the tests, so one process
loads them and forks a child for each mutant, in which pytest runs the tests that are named beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import Noticed, digest_of

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"

TRAINER, GUARDED = "trainer_image/guarded_trainer.py", "trainer/test_guarded_trainer.py"
CALLBACK, CALLED = "trainer_image/callback.py", "trainer/test_callback.py"
REPORTER, REPORTED = "guard_client/reporter.py", "client/test_reporter.py"
GUARD, CLIENT = "guard_client/guard.py", "client/test_guard.py"
SAMPLES, STOPPING, MEASURED = "guard_client/samples.py", "guard_client/stopping.py", "trainer/test_metrics.py"
UNSCORABLE = "trainer_image/unscorable.py"
OUTLOOK, TRAIN = "trainer_image/outlook.py", "trainer_image/train.py"
EXPERIMENT, LOGGED = "trainer_image/experiment.py", "trainer/test_experiment.py"
ROLLOUTS, ROLLED = "guard_client/rollouts.py", "client/test_rollouts.py"
FIGURES, PLOTTED = "trainer_image/figures.py", "client/test_figures.py"
LEARNT = "trainer/test_figures.py"
METRICS, LOSSES = "trainer_image/metrics.py", "trainer_image/losses.py"
CONFIG, ENTRYPOINT = "trainer_image/config.py", "trainer/test_train.py"
PREFLIGHT, LOOKED = "trainer_image/preflight.py", "trainer/test_preflight.py"
ROOMS = ("trainer_image", "guard_client")

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTEST_ADDOPTS": "",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take longer to load than a test
}

#: Source, what stands there, what the mutant has instead, and the tests (file, -k expression) that must fail.
MUTANTS: list[tuple[str, str, str, tuple[str, str]]] = [
    # The table before the first step: what is not known is not ok, a warning is one, and no table ends a run.
    (CALLBACK, "if row.level == CheckLevel.WARN:", "if False:", (CALLED, "one_table_says")),
    (
        CALLBACK,
        "        except Exception:  # of a Trainer",
        "        except OSError:  # of a Trainer",
        (CALLED, "ends_no_run"),
    ),
    (PREFLIGHT, "(_WARN, WITHOUT_KL)", "(_OK, WITHOUT_KL)", (CALLED, "one_table_says")),
    (PREFLIGHT, "if kl_needs_beta(run.args)", "if hasattr(run.args, 'beta')", (LEARNT, "dpo")),
    (PREFLIGHT, "if figures_of(run.args) is UNKNOWN:", "if False:", (LOOKED, "what_to_do")),
    (PREFLIGHT, '"steps", _OK if enough else _WARN', '"steps", _OK', (LEARNT, "sft")),
    (
        PREFLIGHT,
        "Row(name, _OK if enough else _WARN, said)",
        "Row(name, _OK, said)",
        (CALLED, "how_many_evaluations"),
    ),
    (PREFLIGHT, "0 if seen else run.state.global_step", "0", (LOOKED, "what_to_do")),
    (PREFLIGHT, "0 if seen else run.state.global_step", "run.state.global_step", (LOOKED, "what_to_do")),
    (PREFLIGHT, "run.max_lag <= most", "run.max_lag <= most + 1", (LOOKED, "what_to_do")),
    (PREFLIGHT, "    if room < 1:\n", "    if False:\n", (LOOKED, "what_to_do")),
    (OUTLOOK, "    return kept - 1\n", "    return kept\n", (LOOKED, "what_to_do")),
    (
        PREFLIGHT,
        "return Row(name, _WARN, said)\n    if run.sampling",
        "return Row(name, _OK, said)\n    if run.sampling",
        (LOOKED, "what_to_do"),
    ),
    (
        PREFLIGHT,
        "return Row(name, _WARN, said)\n    if run.trainer",
        "return Row(name, _OK, said)\n    if run.trainer",
        (LOOKED, "what_to_do"),
    ),
    (PREFLIGHT, "if not verdict.wants_the_start:", "if False:", (LOOKED, "what_to_do")),
    (PREFLIGHT, "if not trains_adapter(run.trainer):", "if True:", (LOOKED, "what_to_do")),
    (PREFLIGHT, "run.verdict.adapters != Adapters.APPLIED", "False", (LOOKED, "what_to_do")),
    (OUTLOOK, "else int(limit) - keep_best", "else int(limit)", (LOOKED, "what_to_do")),
    (
        OUTLOOK,
        "return None if limit is None or limit <= 0 else",
        "return None if limit is None else",
        (LOOKED, "what_to_do"),
    ),
    # A run that goes on from another one.
    (CONFIG, 'environ.get("RLGUARD_RESUME_FROM") or None', "None", (ENTRYPOINT, "cannot_be_one")),
    (CONFIG, "not given or not checkpoint.is_dir():", "not given:", (ENTRYPOINT, "cannot_be_one")),
    (
        CONFIG,
        "not given or not checkpoint.is_dir():",
        "not checkpoint.is_dir():",
        (ENTRYPOINT, "option_wins"),
    ),
    (CONFIG, '= "--resume-from", resume_from', '= "--resume-from", None', (ENTRYPOINT, "option_wins")),
    (TRAIN, "os.environ, arguments.resume_from)", "os.environ)", (ENTRYPOINT, "option_wins")),
    (CONFIG, '(checkpoint / "adapter_config.json").exists()', "False", (ENTRYPOINT, "cannot_be_one")),
    (CONFIG, "    if not re.fullmatch(", "    if False and not re.fullmatch(", (ENTRYPOINT, "cannot_be_one")),
    (CONFIG, " / run)}", ")}", (ENTRYPOINT, "goes_on_from")),
    (CONFIG, '"model": given, ', "", (ENTRYPOINT, "goes_on_from")),
    # The last step, told before the guard is waited for.
    (
        REPORTER,
        "sent = not (self._queue or self._in_flight or self._last)",
        "sent = not (self._queue or self._in_flight)",
        (REPORTED, "last_step_is_told"),
    ),
    (REPORTER, "            self._last = step, began\n", "", (REPORTED, "last_step_is_told")),
    (
        REPORTER,
        "self._end(step, began, finished=False)",
        "self._end(step, began, finished=True)",
        (REPORTED, "last_step_is_told"),
    ),
    (REPORTER, "        with self._lock:\n            self._last = None\n", "", (REPORTED, "of_an_end")),
    (
        CALLBACK,
        "step=state.global_step, began=self._began)\n        if self.stop",
        "step=state.global_step, began=1)\n        if self.stop",
        (CALLED, "tells_its_last_step"),
    ),
    # A limit that nobody would watch.
    (FIGURES, "if limit is None or figures is None", "if figures is None", (CALLED, "no_reason")),
    (FIGURES, " or figures.kl_kind is KlKind.REF_TOKEN_MEAN:", ":", (CALLED, "no_reason")),
    (FIGURES, "figures is None or figures is UNKNOWN or", "figures is None or", (CALLED, "no_reason")),
    (CALLBACK, "            or limit_unwatched(args, verdict.kl_hard_stop)\n", "", (CALLED, "a_limit_on")),
    # A place that the guard would refuse, and a rotation that is faster than it.
    (CALLBACK, "outside_root(args, verdict.checkpoint_root)", "None", (CALLED, "a_folder_outside")),
    (UNSCORABLE, "        return _adapted_embedding(trainer.model)\n", "", (CALLED, "an_adapted_embedding")),
    (UNSCORABLE, "(os.path.abspath, os.path.realpath)", "(os.path.abspath,)", (CALLED, "a_folder_is_inside")),
    (
        UNSCORABLE,
        "(os.path.abspath, os.path.realpath)",
        "(os.path.realpath,)",
        (CALLED, "a_folder_is_inside"),
    ),
    (CALLBACK, "        self._say_if_rotated_away(args)\n", "", (CALLED, "nears_what_is_unscored")),
    (CALLBACK, " or self._told_rotated_away:", ":", (CALLED, "nears_what_is_unscored")),
    (OUTLOOK, "lag <= limit:", "lag < limit:", (CALLED, "nears_what_is_unscored")),
    # The best checkpoint.
    (CALLBACK, "if self._keep_best and os.path", "if os.path", (CALLED, "spared_on_request")),
    (CALLBACK, "os.path.abspath(own) == self._best:", "self._best:", (CALLED, "spared_on_request")),
    (CALLBACK, "        self._spare_the_best(args, state)\n", "", (CALLED, "every_rank_spares")),
    (CALLBACK, "    if args.save_total_limit == 1:\n", "    if False:\n", (CALLED, "could_not_spare")),
    (
        CALLBACK,
        "    if args.metric_for_best_model is not None:\n",
        "    if False:\n",
        (CALLED, "could_not_spare"),
    ),
    (
        EXPERIMENT,
        "return News(stop, new, best, sooner)",
        'return News(stop, new, "", sooner)',
        (CALLED, "spared_on_request"),
    ),
    # The next checkpoint sooner.
    (EXPERIMENT, "and scored.step == saved", "", (LOGGED, "is_wanted_sooner")),
    (EXPERIMENT, "verdict.sooner and", "", (LOGGED, "is_wanted_sooner")),
    (EXPERIMENT, "may_save and", "", (LOGGED, "is_wanted_sooner")),
    (EXPERIMENT, " and verdict.waiting == 0", "", (LOGGED, "is_wanted_sooner")),
    (EXPERIMENT, " or changed else None", " else None", (LOGGED, "is_wanted_sooner")),
    (OUTLOOK, "by_steps and room)", "by_steps)", (CALLED, "between_two_is_halfway")),
    (OUTLOOK, "by_steps and room)", "room)", (CALLED, "between_two_is_halfway")),
    (OUTLOOK, "every <= 2 * since and", "", (CALLED, "between_two_is_halfway")),
    (OUTLOOK, " and 4 * since <= 3 * every", "", (CALLED, "between_two_is_halfway")),
    (
        CALLBACK,
        "wanted = self._sooner and self.stop",
        "wanted = self._save_sooner and self._sooner and self.stop",
        (CALLED, "every_rank_saves"),
    ),
    (
        CALLBACK,
        "        self._saved = state.global_step\n        if",
        "        if",
        (CALLED, "every_rank_saves"),
    ),
    (
        CALLBACK,
        """self._best, self._saved, self._sooner = "", state.global_step, False""",
        """self._best, self._saved = "", 0""",
        (CALLED, "every_rank_saves"),
    ),
    # Rollouts.
    (CALLBACK, " or not self._metrics.generated:", ":", (CALLED, "never_sent")),
    (METRICS, '= "reward" in values', "= True", (CALLED, "never_sent")),
    (REPORTER, "deque(maxlen=ROLLOUTS_LIMIT)", "deque()", (ROLLED, "too_many")),
    (REPORTER, "if ROLLOUTS not in self._unknown:", "if True:", (ROLLED, "older_release")),
    (REPORTER, "not self._in_flight and self._rollouts:", "self._rollouts:", (ROLLED, "after_the_steps")),
    (GUARD, "not self._settings.rollouts or not", "not", (ROLLED, "switches_them_off")),
    (ROLLOUTS, "    if len(text) <= limit:\n", "    if True:\n", (ROLLED, "keeps_both_ends")),
    (ROLLOUTS, "        before[equals] += 1\n", "", (ROLLED, "different_prompts")),
    (ROLLOUTS, "and abs(r) <= LARGEST", "", (ROLLED, "finite")),
    # Further figures.
    (REPORTER, "deque(maxlen=FIGURES_LIMIT)", "deque()", (PLOTTED, "too_many")),
    (REPORTER, " and FIGURES not in self._unknown:", ":", (PLOTTED, "older_release")),
    (REPORTER, "not self._in_flight and self._figures:", "self._figures:", (PLOTTED, "after_the_steps")),
    (
        REPORTER,
        "min(len(self._figures), MAX_FIGURES_PER_POST)",
        "len(self._figures)",
        (PLOTTED, "themselves"),
    ),
    (
        GUARD,
        "            fit, wrong = {}, f",
        "            raise RuntimeError  # f",
        (PLOTTED, "cost_no_step"),
    ),
    (SAMPLES, "if len(fit) == MAX_FIGURES:", "if False:", (PLOTTED, "what_fits")),
    (SAMPLES, "0 < len(name) <= MAX_FIGURE_NAME", "name", (PLOTTED, "what_fits")),
    (SAMPLES, " or abs(number) > LARGEST:", ":", (PLOTTED, "what_fits")),
    (SAMPLES, 'name.encode("utf-8", "replace").decode()', "name", (PLOTTED, "what_fits")),
    (FIGURES, 'if getattr(args, "use_vllm", False):', "if True:", (LEARNT, "which_texts_end")),
    (FIGURES, 'if getattr(args, "use_vllm", False):', "if False:", (LEARNT, "how_a_trainer_samples")),
    (
        FIGURES,
        "if any(getattr(args, name, False) for name in _BATCHING):",
        "if False:",
        (LEARNT, "which_texts_end"),
    ),
    (FIGURES, 'more.get("stop_strings") or', "", (LEARNT, "which_texts_end")),
    (FIGURES, ' or getattr(of_model, "stop_strings", None)', "", (LEARNT, "which_texts_end")),
    (CALLBACK, "sampling_of(args, self._trainer)", "sampling_of(args)", (LEARNT, "reaches_the_guard")),
    (FIGURES, '"stop": stop}', '"stop": None}', (LEARNT, "how_a_trainer_samples")),
    (FIGURES, "_PLOTTED.fullmatch(key)", "_PLOTTED.search(key)", (MEASURED, "further_figures")),
    (FIGURES, ", re.DOTALL", "", (MEASURED, "further_figures")),
    # What lies ahead.
    (CALLBACK, "            self._say_what_is_ahead(args, state)\n", "", (CALLED, "how_many_evaluations")),
    (OUTLOOK, "needed_for(needed, every)", "needed.long_rounds", (CALLED, "how_many_evaluations")),
    (OUTLOOK, "math.ceil(last / epochs)", "1", (CALLED, "how_many_evaluations")),
    (PREFLIGHT, "    if ahead is None:\n", "    if False:\n", (LOOKED, "what_to_do")),
    # The losses.
    (
        TRAINER,
        "if heldout_guard is not None or alpha_sdpo or beta_replay:",
        "if False:",
        (GUARDED, "leave_the_kill"),
    ),
    (TRAINER, "head(h) / self.temperature", "head(h)", (GUARDED, "sampling_temperature")),
    (TRAINER, "chunk / self.temperature", "chunk", (GUARDED, "sampling_temperature")),
    (
        TRAINER,
        "return loss / self.current_gradient_accumulation_steps if training else loss",
        "return loss",
        (GUARDED, "scaled_for_accumulation"),
    ),
    (
        TRAINER,
        'self.accelerator.reduce(loss.detach(), reduction="mean")',
        "loss.detach()",
        (GUARDED, "over_all_ranks"),
    ),
    (TRAINER, 'completion[1] * inputs["tool_mask"]', "completion[1]", (GUARDED, "answers_of_tools")),
    (LOSSES, ".clamp(min=LOWEST_LOGIT)", "", (GUARDED, "minus_infinity")),
    (LOSSES, "/ (tokens > 0).sum().clamp(min=1)", "/ len(tokens)", (GUARDED, "row_without_a_trace")),
    (TRAINER, "sharded or not _has_plain", "not _has_plain", (GUARDED, "sharded_model")),
    (TRAINER, "self.is_fsdp_enabled or self", "self", (GUARDED, "sharded_model")),
    (TRAINER, "is_fsdp_enabled or self.is_deepspeed_enabled", "is_fsdp_enabled", (GUARDED, "sharded_model")),
    (LOSSES, "CHUNK_LOGITS // vocabulary", "CHUNK_LOGITS", (GUARDED, "chunks_change_neither")),
    (
        LOSSES,
        "with torch.no_grad():\n            reference",
        "if True:\n            reference",
        (GUARDED, "kl_of_the_two_distributions"),
    ),
    # The kill switch.
    (TRAINER, "self.model.train()  # generation", "pass  # generation", (GUARDED, "training_goes_on")),
    (
        TRAINER,
        "        with torch.no_grad():\n            score =",
        "        if True:\n            score =",
        (GUARDED, "without_gradients"),
    ),
    (
        TRAINER,
        "steps if steps >= 1 else max(self.state.logging_steps, 1)",
        "max(steps, 1)",
        (GUARDED, "ratio_of_logging_steps"),
    ),
    (TRAINER, "step != self._killswitch_step and", "", (GUARDED, "only_logging_steps_count")),
    (
        TRAINER,
        "reward, score, kl = ranks.agree(",
        "reward, score, kl = (lambda mine, _: mine)(",
        (GUARDED, "rank_0_measured"),
    ),
    (TRAINER, "kl = median_of_last(self._killswitch_kls) if whole else None", "pass", (GUARDED, "one_spike")),
    (
        TRAINER,
        "kl = median_of_last(self._killswitch_kls) if whole else None",
        "kl = median_of_last(self._killswitch_kls)",
        (GUARDED, "one_spike"),
    ),
    (TRAINER, "guard is None or self.state.global_step == 0:", "guard is None:", (GUARDED, "from_step_0")),
    (TRAINER, 'saved["guard"] | thresholds', 'saved["guard"]', (GUARDED, "thresholds_that_it_is_given")),
    (
        TRAINER,
        "        self._keep_newest()\n        if any(key",
        "        if any(key",
        (GUARDED, "every_due_step_is_folded"),
    ),
    # The callback.
    (CALLBACK, "and sample.step != self._last_step", "", (CALLED, "logged_twice")),
    (
        CALLBACK,
        "        ranks.barrier()\n        self._saved",
        "        self._saved",
        (CALLED, "every_rank_has_written"),
    ),
    (CALLBACK, " and state.global_step == 0\n", "\n", (CALLED, "no_start_to_save")),
    (CALLBACK, "self._began = state.global_step", "self._began = 0", (CALLED, "where_it_began")),
    (CALLBACK, "step=0, sampling=self._sampling", "step=0", (CALLED, "starting_policy_is_saved")),
    (
        CALLBACK,
        "while ranks.agree(self._lags(), args.device)",
        "while self._lags()",
        (CALLED, "as_rank_0_says"),
    ),
    (CALLBACK, "path, _internal_call=True", "path", (CALLED, "never_pushed")),
    (CALLBACK, '"_rlguard-start"', '"rlguard-start"', (CALLED, "never_pushed")),
    (
        GUARD,
        "        self._made(step)\n        with",
        "        with",
        (CLIENT, "could_not_be_reported"),
    ),
    (GUARD, "max(0, self._newest - 1)", "0", (CLIENT, "resumed_loop")),
    (REPORTER, "step=step, began=began", "step=step", (CLIENT, "resumed_loop")),
    (REPORTER, "if error.status is not None:", "if False:", (REPORTED, "still_tells_of_a_fire")),
    (GUARD, "if self._deliver(drain, began) and self._left_out:", "if False:", (CLIENT, "without_a_with")),
    (GUARD, "atexit.register(self._close_at_exit)", "pass", (CLIENT, "ends_without_close")),
    (GUARD, "error.code in (None, 0)", "error.code is None", (CLIENT, "sys_exit_0_is")),
    (GUARD, "isinstance(error, SystemExit) and error.code in (None, 0)", "False", (CLIENT, "over_sys_exit")),
    (
        GUARD,
        "        self._made(step)\n        wrong = wrong_in_ch",
        "        wrong = wrong_in_ch",
        (CLIENT, "was_made"),
    ),
    (GUARD, "if wrong_in_number_of(step) is None:", "if True:", (CLIENT, "could_not_be_reported")),
    (GUARD, "max(self._newest or 0, operator.index(step))", "operator.index(step)", (CLIENT, "could_not_be")),
    (
        CALLBACK,
        "self._guard.finish(state.global_step, self._began)",
        "self._guard.finish()",
        (CALLED, "says_so_last"),
    ),
    (GUARD, "reporter.lag > limit", "False", (CALLED, "waits_for_a_guard_that_lags")),
    (GUARD, "or reporter.refusing", "", (CALLED, "every_checkpoint_was_refused")),
    (REPORTER, "self._refusals.keys() - self._accepted", "()", (CALLED, "every_checkpoint_was_refused")),
    (REPORTER, "self._refusing.pop(kind, None)", "self._refusing.clear()", (REPORTED, "one_kind_says")),
    (REPORTER, "and not os.path.isdir(sample.path)", "and False", (REPORTED, "rotated_away")),
    (REPORTER, "self._dropped_checkpoints += dropped_checkpoint", "pass", (REPORTED, "missed_at_the_end")),
    (GUARD, "or reporter.undelivered", "", (CALLED, "never_reaches_the_guard")),
    (STOPPING, "elif self.reason is None and now", "elif False and now", (CALLED, "in_vain")),
    (STOPPING, "            self.reason = None", "            pass", (CALLED, "in_vain")),
    (STOPPING, " or passes != self._passes", "", (CALLED, "is_progress")),
    (CALLBACK, "ranks.agree(reason, args.device)", "None", (CALLED, "without_a_checkpoint_is_refused")),
    # The figures beside the reward.
    (EXPERIMENT, "copy.copy(trainer.control)", "trainer.control", (LOGGED, "own_log_is_as_it_was")),
    (EXPERIMENT, "except Exception as error:", "except ImportError as error:", (LOGGED, "that_fails")),
    (EXPERIMENT, "if verdict is not None and not lost:", "if verdict is not None:", (LOGGED, "is_lost")),
    (
        EXPERIMENT,
        "float(value) for name, value in known.items() if value is not None",
        "float(value or 0) for name, value in known.items()",
        (LOGGED, "never_0"),
    ),
    (EXPERIMENT, '"fired" if stop.status is not None else "halted"', '"fired"', (LOGGED, "only_a_fire")),
    (CALLBACK, "if logs is not None and are_ours(logs):", "if False:", (LOGGED, "no_log_of_the_trainer")),
    (
        CALLBACK,
        "        self._restore_trainer()\n        if self._guard is not None:\n            "
        "self._guard.close(drain=self.stop is None, ",
        "        if self._guard is not None:\n            self._guard.close(drain=self.stop is None, ",
        (LOGGED, "open_no_new_run"),
    ),
    # The client of any loop.
    (GUARD, "if self._stop is None and self._reporter", "if self._reporter", (CLIENT, "lost_in_the_middle")),
    (GUARD, "seconds > 0.0 and self._look() is None", "seconds > 0.0", (CLIENT, "was_stopped_does_not_wait")),
    (GUARD, "if not self._heard:", "if False:", (CLIENT, "last_report_brings")),
    (GUARD, "if not self._heard:", "if True:", (CLIENT, "loop_has_obeyed")),
    (GUARD, "self.open()\n        self.raise_if_halted()", "self.open()", (CLIENT, "before_its_first_step")),
    (
        GUARD,
        "            self.close(drain=False)\n            return",
        "            self.close()\n            return",
        (CLIENT, "failed_does_not_wait"),
    ),
    (GUARD, "if reporter.verdict is None and stops:", "if False:", (CLIENT, "no_guard_at_the_start_stops")),
    (GUARD, 'self._refuse("step", step, wrong)', "pass", (CLIENT, "always_wrong")),
    (GUARD, 'self._refuse("checkpoint", step, wrong)', "pass", (CLIENT, "wrong_checkpoint")),
    (
        GUARD,
        "if self._phase is not _Phase.NEW:\n            raise TypeError",
        "if False:\n            raise TypeError",
        (CLIENT, "refuses_to_be_pickled"),
    ),
    (
        GUARD,
        "if os.getpid() != self._pid:\n            self._say_forked",
        "if False:\n            self._say_forked",
        (CLIENT, "forked"),
    ),
    (GUARD, 'if environ.get("RANK", "0") != "0":', "if False:", (CLIENT, "only_rank_0")),
    (SAMPLES, "isinstance(value, bool | str | bytes)", "isinstance(value, bool)", (CLIENT, "wrong_step")),
    (SAMPLES, 'if kl_kind is None and values.get("kl") is not None:', "if False:", (CLIENT, "wrong_step")),
    (SAMPLES, "if not os.path.isdir(path):", "if False:", (CLIENT, "wrong_checkpoint")),
    (SAMPLES, "os.O_NOFOLLOW | ", "", ("trainer/test_train.py", "keeps_its_mode")),
    (SAMPLES, " and status.st_nlink == 1", "", ("trainer/test_train.py", "keeps_its_mode")),
    (SAMPLES, "stat.S_ISREG(status.st_mode) and ", "", ("trainer/test_train.py", "keeps_its_mode")),
    # What is reported.
    (
        SAMPLES,
        "KlKind.ABSENT if kind is KlKind.BEHAVIOUR else KlKind.NOT_FINITE",
        "KlKind.ABSENT",
        (MEASURED, "not_finite"),
    ),
    (METRICS, "if self.figures.per_generation:", "if False:", (MEASURED, "it_trains_on")),
]


def test_every_mutant_fits_its_source() -> None:
    for source, old, *_ in MUTANTS:
        assert (ROOT / source).read_text().count(old) == 1, (
            f"{old!r} in {source}: edit this list with the rule"
        )


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_broken_rule_fails_a_test(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, __file__, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=3500,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:] + process.stderr[-4000:]
    assert json.loads((tmp_path / "survivors.json").read_text()) == []


def main(directory: Path) -> None:
    """Fork a child for each mutant that is due; write those that no test noticed to `survivors.json`."""
    noticed = Noticed(__file__)
    rows = {digest_of((ROOT / row[0], TESTS / row[3][0]), *row[:3], *row[3]): row for row in MUTANTS}
    due = noticed.due(rows)
    if due:
        import tests.trainer.tiny  # loads torch, datasets and TRL, and nothing of ours

        assert tests.trainer.tiny and not any(name.startswith(ROOMS) for name in sys.modules)
        whole = directory / "whole.log"
        assert run_tests(ROOT, sorted({row[3] for row in due.values()}), whole) == 0, whole.read_text()[
            -4000:
        ]
    survivors = [digest for digest, row in due.items() if survives(row, directory / digest)]
    noticed.write(rows.keys() - survivors)
    told = [f"{source}: {old} -> {new}" for source, old, new, _ in map(rows.__getitem__, survivors)]
    (directory / "survivors.json").write_text(json.dumps(told))


def survives(row: tuple[str, str, str, tuple[str, str]], room: Path) -> bool:
    """Whether the tests of a row pass with its mutant, in a new directory."""
    source, old, new, chosen = row
    for name in ROOMS:
        shutil.copytree(ROOT / name, room / name, ignore=shutil.ignore_patterns("*.pyc"))
    path = room / source
    path.write_text(path.read_text().replace(old, new))
    code = run_tests(room, [chosen], room / "log")
    assert code in (0, 1), (room / "log").read_text()[-4000:]
    return code == 0


def run_tests(room: Path, chosen: list[tuple[str, str]], log: Path) -> int:
    """The exit code of pytest with our rooms from `room`, in a child."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output = os.open(log, os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.path[:0] = [str(room), str(ROOT)]
    files = sorted({str(TESTS / file) for file, _ in chosen})
    wanted = " or ".join(expression for _, expression in chosen)
    # pytest_timeout by name: without it pyproject.toml's setting is unknown, a warning and so an error.
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_timeout"]
    os._exit(pytest.main(["-q", "-x", *plugins, "--rootdir", str(ROOT), "-k", wanted, *files]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

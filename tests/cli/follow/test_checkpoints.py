"""When a checkpoint is complete, for every layout; and what lies there that is none."""

import json
import os
import struct

import pytest

from rlguard.core.frameworks import LAYOUTS
from rlguard.follow import checkpoints
from rlguard.follow.checkpoints import QUIET_SECONDS, CompleteCheckpoint, Unfit, find_checkpoints, layouts_of
from rlguard.follow.frameworks import BY_KEY, FRAMEWORKS

LONG_AGO = 1_000_000_000
LAID_OUT = [f.key for f in FRAMEWORKS if f.layouts]
WITH_MARKER = ["trl", "prime-rl", "ms-swift", "roll"]


def weights(size=8):
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\x00" * size


def model(folder, when=LONG_AGO):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights())
    for file in folder.iterdir():
        os.utime(file, (when, when))
    return folder


def mark(file, text="", when=LONG_AGO + 10):
    file.write_text(text)
    os.utime(file, (when, when))


def save(root, key, step):
    """A complete checkpoint of each framework."""
    match key:
        case "trl" | "ms-swift":
            path = model(root / f"checkpoint-{step}")
            mark(path / "trainer_state.json", "{}")
        case "verl":
            path = model(root / f"global_step_{step}" / "actor" / "huggingface")
            mark(root / "latest_checkpointed_iteration.txt", str(step))
        case "easyr1":
            path = model(root / f"global_step_{step}" / "actor" / "huggingface")
            mark(root / "checkpoint_tracker.json", json.dumps({"last_global_step": step}))
        case "openrlhf":
            path = model(root / f"global_step{step}_hf")
        case "nemo-rl":
            path = model(root / f"step_{step}" / "policy" / "weights" / "model" / "consolidated")
        case "prime-rl":
            path = model(root / f"step_{step}")
            mark(path / "STABLE")
        case "skyrl":
            path = model(root / f"global_step_{step}" / "policy")
        case "slime":
            path = model(root / str(step))
        case "roll":
            path = model(root / f"checkpoint-{step}")
            mark(path / "tokenizer_config.json", "{}")
    return path


def found(root, key, **more):
    return [c for c in find_checkpoints(root, layouts_of(key), **more) if isinstance(c, CompleteCheckpoint)]


@pytest.mark.parametrize("key", LAID_OUT)
class TestEveryLayout:
    def test_a_complete_one_is_found_also_without_the_frameworks_name(self, tmp_path, key):
        paths = [save(tmp_path, key, step) for step in (5, 10)]
        assert [(c.step, c.path) for c in found(tmp_path, key)] == list(zip((5, 10), paths, strict=True))
        ambiguous = BY_KEY[key].layouts[0].ambiguous
        assert [c.path for c in found(tmp_path, None)] == ([] if ambiguous else paths)
        assert key in LAYOUTS

    def test_weights_that_are_cut_short_or_lack_a_shard_are_not_complete(self, tmp_path, key):
        path = save(tmp_path, key, 5)
        index = {"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}
        mark(path / "model.safetensors.index.json", json.dumps(index), LONG_AGO)
        assert found(tmp_path, key) == []
        (path / "model.safetensors.index.json").unlink()
        assert len(found(tmp_path, key)) == 1
        (path / "model.safetensors").write_bytes(weights()[:-1])
        os.utime(path / "model.safetensors", (LONG_AGO, LONG_AGO))
        assert found(tmp_path, key) == []

    def test_without_a_marker_it_must_be_quiet(self, tmp_path, key):
        save(tmp_path, key, 5)
        early = found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS - 1)
        assert bool(early) == BY_KEY[key].layouts[0].marks
        assert len(found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS + 1)) == 1

    def test_names_that_are_none(self, tmp_path, key):
        for name in ("checkpoint-", "checkpoint-x", "checkpoint-" + "9" * 30, "tmp_step_5", "step_5.old"):
            model(tmp_path / name)
        assert find_checkpoints(tmp_path, layouts_of(key)) == []


@pytest.mark.parametrize("key", WITH_MARKER)
class TestAMarkerInACheckpoint:
    def test_one_that_is_missing_or_being_written(self, tmp_path, key):
        path = save(tmp_path, key, 5)
        name = BY_KEY[key].layouts[0].marker
        (path / name).unlink()
        assert found(tmp_path, key) == []
        if name.endswith(".json"):
            for so_far in ("", '{"log_history": [{"step": 1}, {"st', '{"log_history": [\n'):
                mark(path / name, so_far)
                assert found(tmp_path, key) == []
        mark(path / name, '{"log_history": []}\n')
        assert len(found(tmp_path, key)) == 1
        mark(path / "rng_state.pth", "x", LONG_AGO + 20)  # what is written after it is not waited for
        assert len(found(tmp_path, key, now=LONG_AGO + 21)) == 1

    def test_one_older_than_the_weights_is_of_an_earlier_run_or_a_copy(self, tmp_path, key):
        path = save(tmp_path, key, 5)
        mark(path / BY_KEY[key].layouts[0].marker, "{}", LONG_AGO - 1)
        assert found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS - 2) == []
        assert len(found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS + 1)) == 1


@pytest.mark.parametrize(
    ("key", "name", "of"),
    [
        ("verl", "latest_checkpointed_iteration.txt", str),
        ("easyr1", "checkpoint_tracker.json", lambda step: json.dumps({"last_global_step": step})),
    ],
)
class TestTheFileThatNamesTheNewest:
    def test_one_that_names_an_earlier_step(self, tmp_path, key, name, of):
        for step in (5, 10):
            save(tmp_path, key, step)
        mark(tmp_path / name, of(5))
        assert [c.step for c in found(tmp_path, key)] == [5]

    def test_one_that_is_older_than_the_weights(self, tmp_path, key, name, of):
        """By another node's clock, or of a start that saved this step before: so the quiet is a long one."""
        path = save(tmp_path, key, 20)
        for file in path.iterdir():
            os.utime(file, (LONG_AGO + 12, LONG_AGO + 12))
        assert found(tmp_path, key, now=LONG_AGO + 11 + checkpoints.OLD_MARK_SECONDS) == []
        for now in (LONG_AGO + 12 + checkpoints.OLD_MARK_SECONDS, float("inf")):
            assert [c.step for c in found(tmp_path, key, now=now)] == [20]

    @pytest.mark.parametrize("text", ["", "x", "9" * 5000, "null", "[" * 100_000], ids=range(5))
    def test_one_that_cannot_be_read(self, tmp_path, key, name, of, text):
        save(tmp_path, key, 5)
        mark(tmp_path / name, text)
        assert found(tmp_path, key) == []


class TestRoll:
    """What its first rank leaves in its own folder, or the uploader of all ranks in one; made by hand."""

    def save(self, root, shards, step=5):
        """With Megatron each stage writes its shards; the first rank the index of all, then the tokenizer."""
        path = root / f"checkpoint-{step}"
        (path / "rng_state").mkdir(parents=True)
        for shard in shards:
            (path / shard).write_bytes(weights())
            os.utime(path / shard, (LONG_AGO, LONG_AGO))
        names = {"w": "model0_0.safetensors", "v": "model2_0.safetensors"}
        mark(path / "model.safetensors.index.json", json.dumps({"weight_map": names}), LONG_AGO)
        mark(path / "tokenizer_config.json", "{}")
        return path

    def test_shards_of_all_stages_with_their_index_are_a_model(self, tmp_path):
        path = self.save(tmp_path, ("model0_0.safetensors", "model2_0.safetensors"))
        assert [c.path for c in found(tmp_path, "roll")] == [path]
        (path / "model.safetensors.index.json").unlink()
        assert found(tmp_path, "roll") == []

    def test_a_stage_that_is_missing(self, tmp_path):
        self.save(tmp_path, ("model0_0.safetensors",))
        assert found(tmp_path, "roll") == []

    def test_without_any_weights_it_is_told_what_to_set(self, tmp_path):
        self.save(tmp_path, ())
        [unfit] = find_checkpoints(tmp_path, layouts_of("roll"))
        assert isinstance(unfit, Unfit) and "save_hf_model: true" in unfit.why


class TestMsSwiftWithMegatron:
    """Its trainer writes weights, args.json and Megatron's own files, and no marker; made by hand."""

    def save(self, root, step=5, merged=False):
        path = root / f"checkpoint-{step}"
        (path / f"iter_{step:07d}").mkdir(parents=True)
        mark(path / "args.json", "{}", LONG_AGO)
        mark(path / "latest_checkpointed_iteration.txt", str(step), LONG_AGO)
        return model(root / f"checkpoint-{step}-merged" if merged else path)

    @pytest.mark.parametrize("key", ["ms-swift", None])
    @pytest.mark.parametrize("merged", [False, True])
    def test_it_is_complete_when_it_has_been_quiet(self, tmp_path, key, merged):
        """An adapter is merged by default into a folder of its own, and then alone there."""
        path = self.save(tmp_path, merged=merged)
        assert found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS - 1) == []
        assert found(tmp_path, "trl") == []
        late = found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS + 1)
        assert [(c.step, c.path) for c in late] == [(5, path)]

    def test_of_an_adapter_and_its_merged_model_one_is_scored(self, tmp_path):
        self.save(tmp_path)
        model(tmp_path / "checkpoint-5-merged")
        assert [c.path for c in found(tmp_path, "ms-swift")] == [tmp_path / "checkpoint-5"]


def test_the_adapter_of_verl_is_scored_and_shards_alone_are_said_to_be_of_no_use(tmp_path):
    path = save(tmp_path, "verl", 5)
    adapter = model(tmp_path / "global_step_5" / "actor" / "lora_adapter")
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    assert [c.path for c in found(tmp_path, "verl")] == [adapter]
    for file in (adapter / "adapter_model.safetensors", path / "model.safetensors"):
        file.unlink()
    [unfit] = find_checkpoints(tmp_path, layouts_of("verl"))
    assert isinstance(unfit, Unfit) and "hf_model" in unfit.why


def test_where_prime_rl_keeps_the_weights_of_its_checkpoints(tmp_path):
    path = model(tmp_path / "step_7" / "weight")
    assert found(tmp_path, "prime-rl") == []
    mark(tmp_path / "step_7" / "STABLE")
    assert [(c.step, c.path) for c in found(tmp_path, "prime-rl")] == [(7, path)]


class TestHostile:
    def test_links_are_not_followed(self, tmp_path):
        elsewhere = save(tmp_path / "elsewhere", "trl", 5)
        root = tmp_path / "root"
        root.mkdir()
        (root / "checkpoint-5").symlink_to(elsewhere)
        assert find_checkpoints(root, layouts_of("trl")) == []

    @pytest.mark.parametrize(
        "bad", [b"", b"\x00", struct.pack("<Q", 1 << 62), struct.pack("<Q", 4) + b"null"], ids=range(4)
    )
    def test_a_header_that_promises_too_much(self, tmp_path, bad):
        path = save(tmp_path, "trl", 5)
        (path / "model.safetensors").write_bytes(bad)
        os.utime(path / "model.safetensors", (LONG_AGO, LONG_AGO))
        assert found(tmp_path, "trl") == []

    def test_a_root_that_is_none(self, tmp_path):
        (tmp_path / "file").touch()
        assert [find_checkpoints(tmp_path / name, layouts_of(None)) for name in ("file", "no")] == [[], []]

    def test_weights_that_this_user_may_not_read_are_told_with_what_to_do(self, tmp_path, monkeypatch):
        save(tmp_path, "trl", 5)

        def refuse(path):  # root, who runs the tests, may read everything
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(checkpoints, "open_regular", refuse)
        [unfit] = find_checkpoints(tmp_path, layouts_of("trl"))
        assert isinstance(unfit, Unfit) and "chmod -R a+rX" in unfit.why

"""When a checkpoint is complete, for every layout; and what lies there that is none."""

import json
import os
import struct

import pytest

from guard_core.frameworks import LAYOUTS
from guard_follow import checkpoints
from guard_follow.checkpoints import QUIET_SECONDS, CompleteCheckpoint, Unfit, find_checkpoints, layouts_of
from guard_follow.frameworks import BY_KEY, FRAMEWORKS

LONG_AGO = 1_000_000_000


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


def test_who_reads_no_yaml_knows_whose_checkpoints_can_be_scored():
    assert set(LAYOUTS) == {key for key, framework in BY_KEY.items() if framework.layouts}


LAID_OUT = [f.key for f in FRAMEWORKS if f.layouts]


def found(root, key, **more):
    return [c for c in find_checkpoints(root, layouts_of(key), **more) if isinstance(c, CompleteCheckpoint)]


@pytest.mark.parametrize("key", LAID_OUT)
def test_each_layout_and_auto(tmp_path, key):
    paths = [save(tmp_path, key, step) for step in (5, 10)]
    assert [(c.step, c.path) for c in found(tmp_path, key)] == list(zip((5, 10), paths, strict=True))
    if key not in ("slime", "roll"):
        assert [c.path for c in found(tmp_path, None)] == paths


@pytest.mark.parametrize("key", LAID_OUT)
def test_weights_that_are_cut_short_are_not_complete(tmp_path, key):
    path = save(tmp_path, key, 5)
    (path / "model.safetensors").write_bytes(weights()[:-1])
    os.utime(path / "model.safetensors", (LONG_AGO, LONG_AGO))
    assert found(tmp_path, key) == []


@pytest.mark.parametrize("key", LAID_OUT)
def test_a_shard_that_the_index_names_is_missing(tmp_path, key):
    path = save(tmp_path, key, 5)
    index = {"weight_map": {"w": "model.safetensors", "v": "model-2.safetensors"}}
    mark(path / "model.safetensors.index.json", json.dumps(index), LONG_AGO)
    assert found(tmp_path, key) == []


@pytest.mark.parametrize("key", [k for k in LAID_OUT if not BY_KEY[k].layouts[0].marks])
def test_without_a_marker_it_must_be_quiet(tmp_path, key):
    save(tmp_path, key, 5)
    assert found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS - 1) == []
    assert len(found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS + 1)) == 1


@pytest.mark.parametrize("key", ["trl", "prime-rl", "ms-swift", "roll"])
def test_without_its_marker_it_is_not_complete(tmp_path, key):
    (save(tmp_path, key, 5) / BY_KEY[key].layouts[0].marker).unlink()
    assert found(tmp_path, key) == []


class TestRoll:
    """What its first rank leaves in its own folder, or the uploader of all ranks in one; made by hand."""

    def with_fsdp(self, root, step=5):
        path = model(root / f"checkpoint-{step}")
        (path / "dcp").mkdir()
        for name in ("generation_config.json", "tokenizer.json"):
            mark(path / name, "{}", LONG_AGO)
        mark(path / "tokenizer_config.json", "{}")
        return path

    def with_megatron(self, root, shards=("model0_0.safetensors", "model2_0.safetensors"), step=5):
        """Each stage writes its shards; the first rank the index of all, and after that the tokenizer."""
        path = root / f"checkpoint-{step}"
        (path / "rng_state").mkdir(parents=True)
        mark(path / "config.json", "{}", LONG_AGO)
        for name in shards:
            (path / name).write_bytes(weights())
            os.utime(path / name, (LONG_AGO, LONG_AGO))
        index = {"weight_map": {"w": "model0_0.safetensors", "v": "model2_0.safetensors"}}
        mark(path / "model.safetensors.index.json", json.dumps(index), LONG_AGO)
        mark(path / "mca_config.json", "{}", LONG_AGO)
        mark(path / "tokenizer_config.json", "{}")
        mark(path / "scheduler.pt")
        return path

    @pytest.mark.parametrize("save", ["with_fsdp", "with_megatron"])
    def test_it_is_complete_once_the_tokenizer_is_there(self, tmp_path, save):
        path = getattr(self, save)(tmp_path)
        assert [(c.step, c.path) for c in found(tmp_path, "roll")] == [(5, path)]
        (path / "tokenizer_config.json").unlink()
        assert found(tmp_path, "roll") == []

    def test_the_shards_of_one_stage_of_several_are_no_model(self, tmp_path):
        self.with_megatron(tmp_path, shards=("model0_0.safetensors",))
        assert found(tmp_path, "roll") == []

    def test_a_copy_that_has_no_index_yet_is_no_model(self, tmp_path):
        path = self.with_megatron(tmp_path)
        (path / "model.safetensors.index.json").unlink()
        assert found(tmp_path, "roll") == []

    def test_with_megatrons_own_weights_alone_it_is_told_what_to_set(self, tmp_path):
        path = self.with_megatron(tmp_path, shards=())
        (path / "model.safetensors.index.json").unlink()
        [unfit] = find_checkpoints(tmp_path, layouts_of("roll"))
        assert "set `actor_train.training_args.save_hf_model: true`" in unfit.why

    def test_another_trainers_folder_without_its_own_mark_is_not_taken_for_one(self, tmp_path):
        self.with_fsdp(tmp_path)
        assert found(tmp_path, None) == []


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
        late = found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS + 1)
        assert [(c.step, c.path) for c in late] == [(5, path)]
        (path / "model.safetensors").write_bytes(weights()[:-1])
        assert found(tmp_path, key, now=float("inf")) == []

    def test_of_an_adapter_and_its_merged_model_one_is_scored(self, tmp_path):
        self.save(tmp_path)
        model(tmp_path / "checkpoint-5-merged")
        assert [c.path for c in found(tmp_path, "ms-swift")] == [tmp_path / "checkpoint-5"]

    def test_one_whose_marker_is_still_to_come_is_of_the_other_trainer(self, tmp_path):
        (save(tmp_path, "ms-swift", 5) / "trainer_state.json").unlink()
        mark(tmp_path / "checkpoint-5" / "args.json", "{}", LONG_AGO)
        assert find_checkpoints(tmp_path, layouts_of("ms-swift"), now=float("inf")) == []

    def test_trls_own_layout_knows_nothing_of_it(self, tmp_path):
        self.save(tmp_path)
        assert found(tmp_path, "trl") == []


@pytest.mark.parametrize("so_far", ["", '{"log_history": [{"step": 1}, {"st', '{"log_history": [\n'])
@pytest.mark.parametrize("key", ["trl", "ms-swift"])
def test_a_marker_that_is_being_written_is_none(tmp_path, key, so_far):
    """Its files would not be those of the announcement any more, and nobody would score it."""
    path = save(tmp_path, key, 5)
    mark(path / "trainer_state.json", so_far)
    assert find_checkpoints(tmp_path, layouts_of(key)) == []
    mark(path / "trainer_state.json", '{"log_history": []}\n')
    assert [found.step for found in find_checkpoints(tmp_path, layouts_of(key))] == [5]


@pytest.mark.parametrize("key", ["trl", "prime-rl", "ms-swift", "roll"])
def test_a_marker_older_than_the_weights_is_of_an_earlier_run(tmp_path, key):
    path = save(tmp_path, key, 5)
    mark(path / BY_KEY[key].layouts[0].marker, "{}", LONG_AGO - 1)
    assert found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS - 2) == []
    assert len(found(tmp_path, key, now=LONG_AGO + QUIET_SECONDS + 1)) == 1  # a copy has any order


def test_what_a_trainer_writes_after_its_marker_is_not_waited_for(tmp_path):
    mark(save(tmp_path, "trl", 5) / "rng_state.pth", "x", LONG_AGO + 20)
    assert len(found(tmp_path, "trl", now=LONG_AGO + 21)) == 1


@pytest.mark.parametrize("key", ["trl", "openrlhf"])
def test_a_shard_without_an_index_is_not_the_whole(tmp_path, key):
    path = save(tmp_path, key, 5)
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    assert found(tmp_path, key) == []
    (path / "model-00002-of-00002.safetensors").write_bytes(weights())
    names = {"w": "model-00001-of-00002.safetensors", "v": "model-00002-of-00002.safetensors"}
    mark(path / "model.safetensors.index.json", json.dumps({"weight_map": names}))
    for file in path.iterdir():
        os.utime(file, (LONG_AGO, LONG_AGO))
    assert len(found(tmp_path, key)) == 1


def test_where_prime_rl_keeps_the_weights_of_its_checkpoints(tmp_path):
    path = model(tmp_path / "step_7" / "weight")
    assert found(tmp_path, "prime-rl") == []
    mark(tmp_path / "step_7" / "STABLE")
    assert [(c.step, c.path) for c in found(tmp_path, "prime-rl")] == [(7, path)]


def test_the_adapter_of_verl_is_scored_and_not_the_model_beside_it(tmp_path):
    save(tmp_path, "verl", 5)
    adapter = model(tmp_path / "global_step_5" / "actor" / "lora_adapter")
    (adapter / "model.safetensors").rename(adapter / "adapter_model.safetensors")
    assert [c.path for c in found(tmp_path, "verl")] == [adapter]


class TestTheFileThatNamesTheNewest:
    def test_it_names_an_earlier_one(self, tmp_path):
        save(tmp_path, "verl", 5)
        save(tmp_path, "verl", 10)
        mark(tmp_path / "latest_checkpointed_iteration.txt", "5")
        assert [c.step for c in found(tmp_path, "verl")] == [5]

    def test_it_is_older_than_the_weights(self, tmp_path):
        save(tmp_path, "verl", 5)
        mark(tmp_path / "latest_checkpointed_iteration.txt", "30", LONG_AGO - 1)
        assert found(tmp_path, "verl", now=LONG_AGO + checkpoints.OLD_MARK_SECONDS - 1) == []

    @pytest.mark.parametrize("text", ["", "x", "9" * 5000, "null", "[" * 100_000])
    def test_it_is_none(self, tmp_path, text):
        for key, file in (
            ("verl", "latest_checkpointed_iteration.txt"),
            ("easyr1", "checkpoint_tracker.json"),
        ):
            save(tmp_path, key, 5)
            mark(tmp_path / file, text)
            assert found(tmp_path, key) == []

    def test_shards_alone_are_said(self, tmp_path):
        path = save(tmp_path, "verl", 5)
        (path / "model.safetensors").unlink()
        [unfit] = find_checkpoints(tmp_path, layouts_of("verl"))
        assert isinstance(unfit, Unfit) and "hf_model" in unfit.why


class TestHostile:
    def test_links_are_not_followed(self, tmp_path):
        elsewhere = save(tmp_path / "elsewhere", "trl", 5)
        root = tmp_path / "root"
        root.mkdir()
        (root / "checkpoint-5").symlink_to(elsewhere)
        assert find_checkpoints(root, layouts_of("trl")) == []

    def test_a_header_that_promises_too_much(self, tmp_path):
        path = save(tmp_path, "trl", 5)
        for bad in (b"", b"\x00", struct.pack("<Q", 1 << 62), struct.pack("<Q", 4) + b"null"):
            (path / "model.safetensors").write_bytes(bad)
            os.utime(path / "model.safetensors", (LONG_AGO, LONG_AGO))
            assert found(tmp_path, "trl") == []

    def test_names_that_are_none(self, tmp_path):
        for name in ("checkpoint-", "checkpoint-x", "checkpoint-" + "9" * 30, "tmp_step_5", "step_5.old"):
            model(tmp_path / name)
        assert [c for key in LAID_OUT for c in find_checkpoints(tmp_path, layouts_of(key))] == []

    def test_a_root_that_is_none(self, tmp_path):
        (tmp_path / "file").touch()
        assert (
            find_checkpoints(tmp_path / "file", layouts_of(None))
            == find_checkpoints(tmp_path / "no", layouts_of(None))
            == []
        )


def test_weights_that_this_user_may_not_read_are_told_with_what_to_do(tmp_path, monkeypatch):
    save(tmp_path, "trl", 5)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(checkpoints, "open_regular", refuse)
    [unfit] = find_checkpoints(tmp_path, layouts_of("trl"))
    assert isinstance(unfit, Unfit) and "chmod -R a+rX" in unfit.why


@pytest.mark.parametrize("key", ["verl", "easyr1"])
def test_a_mark_of_the_whole_folder_may_be_older_by_another_nodes_clock(tmp_path, key):
    """It may also be of a start that saved this step before, so the quiet is a long one."""
    path = save(tmp_path, key, 20)
    for file in path.iterdir():
        os.utime(file, (LONG_AGO + 12, LONG_AGO + 12))
    assert found(tmp_path, key, now=LONG_AGO + 11 + checkpoints.OLD_MARK_SECONDS) == []
    assert [c.step for c in found(tmp_path, key, now=LONG_AGO + 12 + checkpoints.OLD_MARK_SECONDS)] == [20]
    assert [c.step for c in found(tmp_path, key, now=float("inf"))] == [20]

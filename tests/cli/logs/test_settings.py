"""The configuration that a run leaves behind is hostile input."""

from __future__ import annotations

from pathlib import Path

import pytest

from guard_follow.errors import InputError
from guard_follow.settings import find_settings

PLAIN = "actor: &a {kl_penalty: kl}\nalgorithm: {again: *a}\n"


def test_a_setting_is_found_and_a_merge_key_is_refused(tmp_path: Path) -> None:
    """Seven lines of merge keys would be two million keys; an alias alone costs nothing."""
    (config := tmp_path / "config.yaml").write_text(PLAIN)
    assert find_settings(config, None)["kl_penalty"] == "kl"
    config.write_text(f"{PLAIN}more: {{<<: [*a, *a]}}\n")
    with pytest.raises(
        InputError, match=r"config.yaml: not a configuration that can be read \(ConstructorError"
    ):
        find_settings(config, None)

"""How YAML is written into generated files."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """YAML without anchors: the same dict object may stand in several places."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def to_yaml(value: Any) -> str:
    """Block-style YAML in the order of the keys."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)

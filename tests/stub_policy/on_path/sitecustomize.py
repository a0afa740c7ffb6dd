"""Replace the engine `hf` by one that asks the policy of a test, in the processes that it started."""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path


class StubPolicy(MetaPathFinder):
    """Finds the stub in the engine's place."""

    def find_spec(self, name, path=None, target=None):
        if name == "guard_service.heldout.evaluators.hf":
            return spec_from_file_location(name, Path(__file__).with_name("stub_hf.py"))
        return None


if "STUB_POLICY_URL" in os.environ:
    sys.meta_path.insert(0, StubPolicy())

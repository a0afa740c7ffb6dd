"""For `make test-ray`: no telemetry, no dashboard, loopback only. Set before anything of Ray is imported."""

from __future__ import annotations

import os

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_DEDUP_LOGS": "0"}

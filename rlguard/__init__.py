"""RLGuard stops reinforcement-learning post-training when the policy starts to hack its reward.

    from rlguard import GuardCallback          # TRL and any Hugging Face Trainer
    from rlguard import Guard                  # any other loop
    from rlguard import HeldOutGuard           # the classic rule, without a guard process

The names in `__all__` are the public interface, with the modules `rlguard.train` (the trainer image's
entrypoint) and `rlguard.rewards`. Nothing else in this distribution is stable. A name loads what it needs
when it is first used, so `import rlguard` loads nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlguard.client.errors import GuardConfigError, GuardHaltError, GuardLostError
    from rlguard.client.guard import Guard
    from rlguard.core._version import __version__
    from rlguard.core.codes import Code, Level
    from rlguard.core.heldout_guard import (
        CollapseStopError,
        HeldOutGuard,
        TripwireStatus,
        kl_token_trust_filter,
    )
    from rlguard.core.policy import Policy
    from rlguard.core.wire import CheckpointReport, Condition, KlKind, StepReport, Verdict
    from trainer_image.callback import GuardCallback
    from trainer_image.guarded_trainer import GuardedGRPOTrainer

__all__ = [
    "CheckpointReport",
    "Code",
    "CollapseStopError",
    "Condition",
    "Guard",
    "GuardCallback",
    "GuardConfigError",
    "GuardHaltError",
    "GuardLostError",
    "GuardedGRPOTrainer",
    "HeldOutGuard",
    "KlKind",
    "Level",
    "Policy",
    "StepReport",
    "TripwireStatus",
    "Verdict",
    "__version__",
    "kl_token_trust_filter",
]

#: Where each name is defined.
_HOMES = {
    "CheckpointReport": "rlguard.core.wire",
    "Code": "rlguard.core.codes",
    "CollapseStopError": "rlguard.core.heldout_guard",
    "Condition": "rlguard.core.wire",
    "Guard": "rlguard.client.guard",
    "GuardCallback": "trainer_image.callback",
    "GuardConfigError": "rlguard.client.errors",
    "GuardLostError": "rlguard.client.errors",
    "GuardHaltError": "rlguard.client.errors",
    "GuardedGRPOTrainer": "trainer_image.guarded_trainer",
    "HeldOutGuard": "rlguard.core.heldout_guard",
    "KlKind": "rlguard.core.wire",
    "Level": "rlguard.core.codes",
    "Policy": "rlguard.core.policy",
    "StepReport": "rlguard.core.wire",
    "TripwireStatus": "rlguard.core.heldout_guard",
    "Verdict": "rlguard.core.wire",
    "__version__": "rlguard.core._version",
    "kl_token_trust_filter": "rlguard.core.heldout_guard",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rlguard' has no attribute {name!r}; {_instead(name)}")
    if home.startswith("trainer_image"):
        from rlguard.core.extras import require

        require("trainer", f"rlguard.{name}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def _instead(name: str) -> str:
    import difflib

    alike = difflib.get_close_matches(name, __all__, n=1)
    return f"did you mean {alike[0]}?" if alike else f"it has {', '.join(__all__)}"


def __dir__() -> list[str]:
    return sorted(__all__)

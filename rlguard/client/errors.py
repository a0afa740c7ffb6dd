"""Every error that a user of the trainer can meet, but for `rlguard.core.CollapseStopError` (a fire).

GuardHaltError          a halt: training must stop although no rule fired, because an action is `stop`
GuardLostError          neither a fire nor a halt: no guard responds, or it refuses every report, or
                        checkpoints do not reach it or are never scored
GuardConfigError        a setting is missing or wrong, or no checkpoint of the run could ever be scored
GuardUnavailableError   one exchange with the guard failed; the reporter retries it
ReportRefusedError      the guard read the report and refuses it; a retry would not help
"""

from __future__ import annotations


class GuardHaltError(RuntimeError):
    """A halt: raised where training stops although no rule fired, because an action is `stop`."""


class GuardLostError(RuntimeError):
    """Raised where training stops because no guard responds, takes or scores reports: nobody judges it."""


class GuardConfigError(ValueError):
    """A setting is missing or wrong; the message names it and says what to set."""


class GuardUnavailableError(Exception):
    """The guard could not be reached, failed, or gave a response that cannot be read.

    `status` is that of the response, None without one. 401 and 403 are `unauthorised`: no waiting will change
    them.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def unauthorised(self) -> bool:
        """Whether the guard does not accept the token."""
        return self.status in (401, 403)


class ReportRefusedError(Exception):
    """The response is 400, 409, 413 or 422: this report is wrong and was not folded."""

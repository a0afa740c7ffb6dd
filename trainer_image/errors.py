"""Every error that a user of the trainer can meet, but for `guard_core.CollapseStopError` (a fire).

GuardStopError          training must stop although nothing says "hacking": a policy says `stop`
  GuardLostError        ... or no guard answers
GuardConfigError        a setting is missing or wrong
GuardUnavailableError   one exchange with the guard failed; the reporter retries it
ReportRefusedError      the guard read the report and refuses it; a retry would not help
"""

from __future__ import annotations


class GuardStopError(RuntimeError):
    """Raised where training stops without evidence of hacking, because a policy of the guard says `stop`."""


class GuardLostError(GuardStopError):
    """Raised where training stops because no guard has answered for too long: the run is not guarded."""


class GuardConfigError(ValueError):
    """A setting is missing or wrong; the message names it and says what to set."""


class GuardUnavailableError(Exception):
    """The guard could not be reached, failed, or gave an answer that cannot be read.

    `unauthorised` marks an answer 401 or 403, which no waiting will change.
    """

    def __init__(self, message: str, *, unauthorised: bool = False) -> None:
        super().__init__(message)
        self.unauthorised = unauthorised


class ReportRefusedError(Exception):
    """The guard answered 400, 409, 413 or 422: this report is wrong and was not folded."""

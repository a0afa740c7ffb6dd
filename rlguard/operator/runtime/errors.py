"""What can go wrong between the operator and the API server.

ClusterError
├── ApiError          the API server responded, but not with success
└── TransportError    no usable response: refused, cut, hung past its deadline, not JSON
"""

from __future__ import annotations


class ClusterError(Exception):
    """Base of everything that a request to the API server can raise.

    `status` is that of the HTTP response, None if there was none.
    """

    status: int | None = None
    #: Whether the same request would fail again: it was refused, or a webhook failed, which is a 500.
    decided: bool = False


class TransportError(ClusterError):
    """The request got no usable response; whether it took effect is unknown."""


class ApiError(ClusterError):
    """The API server responded with an error.

    `status` is the HTTP status, `reason` the machine-readable reason of the Status object ("" if there was
    none), `retry_after` the seconds after which the server wants to be asked again, None if it did not say.
    """

    def __init__(self, status: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(f"{status} {reason}: {message}".replace(" : ", ": "))
        self.status: int = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.decided = self.refused or status == 500

    @property
    def refused(self) -> bool:
        """Whether it was refused: for good, or until somebody changes a permission, a quota or a policy."""
        return 400 <= self.status < 500 and self.status not in {401, 408, 409, 410, 429}

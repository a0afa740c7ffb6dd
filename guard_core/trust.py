"""Which tokens to leave out of the loss because the policy has moved too far from the reference there."""

from __future__ import annotations

from typing import Any


def kl_token_trust_filter(logratio_sq_half: Any, threshold: float = 0.08) -> Any:
    """True where a token is outside the trust region and must be masked.

    Args:
        logratio_sq_half: 0.5 * (log pi - log pi_ref)^2 per token, the k2 estimator of the KL (nats/token;
            Schulman, "Approximating KL divergence", 2020). A float, or any array or tensor that compares
            elementwise, of any shape.
        threshold: nats/token; a token is masked strictly above it.

    Returns:
        A bool, or an array or tensor of bools of the same shape.
    """
    return logratio_sq_half > threshold

"""The two auxiliary losses of `GuardedGRPOTrainer`, as functions of logits. No models, no trainer state.

Logits of a whole batch are too large to hold: 8 completions of 1,024 tokens at a vocabulary of 152,000 are
5 GB in float32, and a KL with its gradient needs several of that size. So logits are made in chunks of tokens
from the hidden states, used up, and made again for the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

#: Logits in one chunk: 64 MiB in float32. About a dozen tensors of that size live at once.
CHUNK_LOGITS = 1 << 24
#: Smaller logits count as this: their probability is 0 in float32, and minus infinity would give 0 * inf.
LOWEST_LOGIT = -1e4


@dataclass(frozen=True, slots=True)
class Logits:
    """Logits of completions as `head(hidden)`, to be made in chunks.

    Fields:
        hidden: shape (batch, tokens, width); position t is what predicts token t.
        head: from (n, width) to logits (n, vocabulary).
        vocabulary: size of the vocabulary.
    """

    hidden: torch.Tensor
    head: Callable[[torch.Tensor], torch.Tensor]
    vocabulary: int


def distillation_loss(student: Logits, teacher: Logits, mask: torch.Tensor) -> torch.Tensor:
    """Mean per-token KL(student || teacher) over the completion, nats/token, over the whole vocabulary.

    The reverse KL of self-distillation policy optimisation (Hübotter et al., arXiv 2601.20802): the student
    is the policy on the plain prompt, the teacher the same policy on the privileged prompt. No gradient
    reaches the teacher's logits.

    Args:
        student, teacher: of the same completions.
        mask: shape (batch, tokens), 1 on completion tokens.

    Returns:
        A scalar; 0 if the mask is empty.
    """

    def kl(student_hidden: torch.Tensor, teacher_hidden: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            reference = _log_probs(teacher.head(teacher_hidden))
        policy = _log_probs(student.head(student_hidden))
        return (policy.exp() * (policy - reference)).sum(-1)

    per_token = _in_chunks(kl, student.vocabulary, mask, student.hidden, teacher.hidden)
    return per_token.sum() / mask.sum().clamp(min=1)


def replay_loss(logits: Logits, ids: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted negative log-likelihood of recorded traces, nats/token: the mean over traces of w_i * NLL_i.

    NLL_i is the mean over the tokens of trace i, so that a long trace counts as much as a short one.

    Args:
        logits: of the traces; position t predicts `ids[:, t]`.
        ids: token ids, shape (batch, tokens).
        mask: 1 on the tokens of the trace, 0 on prompt and padding; a row of zeros is no trace.
        weights: one weight per row, shape (batch,), >= 0.

    Returns:
        A scalar; 0 if there is no trace.
    """

    def nll(hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return -_log_probs(logits.head(hidden)).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    per_token = _in_chunks(nll, logits.vocabulary, mask, logits.hidden, ids)
    tokens = mask.sum(-1)
    weight = (weights / tokens.clamp(min=1)).unsqueeze(-1).expand_as(mask)[mask.bool()]
    return (weight * per_token).sum() / (tokens > 0).sum().clamp(min=1)


def _log_probs(logits: torch.Tensor) -> torch.Tensor:
    return F.log_softmax(logits.float().clamp(min=LOWEST_LOGIT), dim=-1)


def _in_chunks(
    per_token: Callable[..., torch.Tensor], vocabulary: int, mask: torch.Tensor, *of_tokens: torch.Tensor
) -> torch.Tensor:
    """`per_token` of the tokens under the mask, in chunks that keep only their inputs for the gradient.

    Without a token there is one empty chunk: every rank does the same, and every weight has a gradient.
    """
    size = max(1, CHUNK_LOGITS // vocabulary)
    chunks = zip(*(torch.split(values[mask.bool()], size) for values in of_tokens), strict=True)
    return torch.cat(
        [checkpoint(per_token, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
    )

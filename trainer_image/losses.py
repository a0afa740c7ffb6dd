"""The two auxiliary losses of `GuardedGRPOTrainer`, as functions of logits. No models, no trainer state."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def distillation_loss(
    student_logits: torch.Tensor, teacher_logits: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Mean per-token KL(student || teacher) over the completion, nats/token, over the whole vocabulary.

    The reverse KL of self-distillation policy optimisation (Hübotter et al., arXiv 2601.20802): the student
    is the policy on the plain prompt, the teacher the same policy on the privileged prompt. No gradient
    reaches the teacher's logits.

    Args:
        student_logits, teacher_logits: shape (batch, tokens, vocabulary).
        mask: shape (batch, tokens), 1 on completion tokens.

    Returns:
        A scalar; 0 if the mask is empty.
    """
    student = F.log_softmax(student_logits.float(), dim=-1)
    teacher = F.log_softmax(teacher_logits.detach().float(), dim=-1)
    per_token = (student.exp() * (student - teacher)).sum(-1)
    return (per_token * mask).sum() / mask.sum().clamp(min=1)


def replay_loss(
    logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Weighted negative log-likelihood of recorded traces, nats/token: the mean over traces of w_i * NLL_i.

    NLL_i is the mean over the tokens of trace i, so that a long trace counts as much as a short one.

    Args:
        logits: shape (batch, tokens, vocabulary); `logits[:, t]` predicts `ids[:, t]`.
        ids: token ids, shape (batch, tokens).
        mask: 1 on the tokens of the trace, 0 on prompt and padding; a row of zeros is no trace.
        weights: one weight per row, shape (batch,), >= 0.

    Returns:
        A scalar; 0 if there is no trace.
    """
    log_probs = F.log_softmax(logits.float(), dim=-1)
    nll = -log_probs.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    tokens = mask.sum(-1)
    per_trace = (nll * mask).sum(-1) / tokens.clamp(min=1)
    return (weights * per_trace).sum() / (tokens > 0).sum().clamp(min=1)

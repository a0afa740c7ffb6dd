"""One decision for all ranks of a distributed run, at a small broadcast each.

Every function is a collective: all ranks must call it, in the same order. Without `torch.distributed`
each is the identity.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def is_distributed() -> bool:
    """Whether there is more than one rank."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def agree(decision: Any, device: torch.device | str) -> Any:
    """Rank 0's decision, on every rank; None is the usual case and costs the broadcast of one byte.

    Args:
        decision: picklable; only rank 0's counts.
        device: where this backend moves tensors (`args.device` of the trainer).
    """
    if not is_distributed():
        return decision
    flag = torch.tensor([decision is not None], dtype=torch.uint8, device=device)
    dist.broadcast(flag, src=0)
    if not flag.item():
        return None
    box: list[Any] = [decision]
    dist.broadcast_object_list(box, src=0, device=torch.device(device))
    return box[0]


def barrier() -> None:
    """Wait until every rank is here."""
    if is_distributed():
        dist.barrier()


def shut_down() -> None:
    """Leave the process group, if there is one; not a collective."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()

"""Plans: the input offsets of each batch, stored before the batch is read.

**The problem.** Two drivers may run batch N: at the same time, or one after the other was killed. The input grows, so
each would read a different part of it. Then some rows would be written twice, and others never.

**The idea.** `plan/N` in the warehouse holds the offsets at which batch N starts and ends. It is created with
put-if-absent, and never changed. If several drivers propose a plan for the same batch, the store accepts one of them,
and all drivers use that one.

**The invariant.** Batch N always stands for the same input bytes, and so for the same rows, whichever driver runs it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from wireloom.model import ConfigError
from wireloom.pipeline.planning import Offsets
from wireloom.pipeline.warehouse import Warehouse
from wireloom.store import ObjectMissing

FOLDER = "plan"
KEPT = 100
"""How many plans of committed batches are kept, so that people can look up what was read when."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The input of a batch: everything between two offsets."""

    number: int
    start: Offsets
    end: Offsets


def read(warehouse: Warehouse, number: int) -> BatchPlan | None:
    """The plan of a batch; None if there is none yet."""
    try:
        text = warehouse.base.get(_key(number))
    except ObjectMissing:
        return None
    try:
        said = json.loads(text)
        return BatchPlan(number, dict(said["start"]), dict(said["end"]))
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{warehouse.url}/{_key(number)} is damaged: restore it, or remove it to plan anew") from None


def propose(warehouse: Warehouse, plan: BatchPlan) -> BatchPlan:
    """Store a plan if its batch has none yet. Returns the plan that is valid: this one, or the one stored before."""
    text = json.dumps({"start": plan.start, "end": plan.end}, sort_keys=True)
    if warehouse.base.put_new(_key(plan.number), text.encode()):
        return plan
    winner = read(warehouse, plan.number)
    return plan if winner is None else winner


def forget(warehouse: Warehouse, number: int) -> None:
    """After the commit of batch `number`: delete the plan that is `KEPT` batches older."""
    if number >= KEPT:
        warehouse.base.delete(_key(number - KEPT))


def _key(number: int) -> str:
    return f"{FOLDER}/{number}"

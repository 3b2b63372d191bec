"""Plans: which part of the input a batch reads, written down before it is read.

`plan/N` in the warehouse says where batch N begins and ends. It is created once and never changed: of several drivers
that plan the same batch one wins, and all of them do what that plan says. A driver that is lost and one that takes over
read the same bytes under the same number. So a commit of batch N means the same rows, whoever makes it.
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
"""So many plans of finished batches are kept, for people who ask what was read when."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What a batch reads: everything between two positions."""

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
    """Make this the plan of its batch, unless there is one: then that is returned."""
    text = json.dumps({"start": plan.start, "end": plan.end}, sort_keys=True)
    if warehouse.base.put_new(_key(plan.number), text.encode()):
        return plan
    winner = read(warehouse, plan.number)
    return plan if winner is None else winner


def forget(warehouse: Warehouse, number: int) -> None:
    """Remove the plan that nobody asks for any more, now that a batch is done."""
    if number >= KEPT:
        warehouse.base.delete(_key(number - KEPT))


def _key(number: int) -> str:
    return f"{FOLDER}/{number}"

"""Runs two sides in turn, several times, and says how they compare.

The machine is noisy, so only the ratio of two runs that follow each other is trusted: each round runs both sides
once, in alternating order, and gives one ratio. Printed are the median ratio and the smallest and largest one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ONLY = ""
"""A regular expression: rows whose measure and peer it does not match are left out."""

Side = Callable[[], float]
"""Runs once and returns how much it did per second (or whatever the measure's unit is; more is better)."""


@dataclass
class Result:
    """One row of the table."""

    measure: str
    peer: str
    goal: float
    unit: str
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def row(self) -> str:
        ratios = self.ratios
        middle = statistics.median(ratios)
        verdict = "met" if middle >= self.goal else "MISSED"
        goal = f"≥ {self.goal:g}× {verdict}" if self.goal else "none"
        ours, theirs = statistics.median(self.ours), statistics.median(self.theirs)
        return (
            f"| {self.measure} | {self.peer} | {ours:,.0f} | {theirs:,.0f} "
            f"| {middle:.2f}× ({min(ratios):.2f}–{max(ratios):.2f}) | {goal} |"
        )


HEADER = "| measure | peer | ours | peer's | ratio (smallest–largest) | goal |\n|---|---|---|---|---|---|"


def compare(
    measure: str, peer: str, ours: Side, theirs: Side, *, goal: float, unit: str = "messages/s", rounds: int = 5
) -> Result:
    """Both sides, `rounds` times, taking turns at going first; one untimed round warms up."""
    result = Result(measure, peer, goal, unit)
    if not re.search(ONLY, f"{measure} | {peer}"):
        return result
    ours()
    theirs()
    for number in range(rounds):
        for side in (ours, theirs) if number % 2 == 0 else (theirs, ours):
            (result.ours if side is ours else result.theirs).append(side())
    print(result.row(), flush=True)
    return result


def go_first() -> None:
    """Have this process and all it starts run ahead of everything else on the machine, if the system allows that."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def save(name: str, results: list[Result]) -> None:
    """Keep the raw figures with the machine they were taken on."""
    RESULTS.mkdir(exist_ok=True)
    record = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "results": [asdict(result) for result in results],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1))

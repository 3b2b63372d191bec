"""Run attacks one after the other, and print what the well-behaved client felt during each.

python -m tests.attack [PART OF A NAME]...
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys
import tempfile
from pathlib import Path

from tests.attack.harness import MB, Attack, Report, load, run
from wireloom.transports.loop import run as run_loop

PATIENCE = 300.0
"""Seconds that one attack may take."""
HEAD = ("attack", "p50 ms", "p99 ms", "worst ms", "own ms", "memory MB", "seconds", "")


async def attempt(what: Attack) -> tuple[Report | None, str]:
    """What was seen, and what was wrong; nothing if the hub held."""
    report = None
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            async with asyncio.timeout(PATIENCE):
                report = await run(what, Path(folder))
            report.check()
        except Exception as error:
            return report, f"{type(error).__name__}: {error}\n{said.getvalue()}"
    return report, ""


def cells(report: Report | None) -> list[str]:
    """A row of the table, from the second column on."""
    if report is None:
        return ["-"] * (len(HEAD) - 2)
    felt = [f"{1000 * report.percentile(part):.1f}" for part in (0.5, 0.99, 1.0)]
    return [*felt, f"{1000 * max(report.own):.1f}", f"{report.grown / MB:+.0f}", f"{report.seconds:.1f}"]


def main(words: list[str]) -> int:
    """Run those whose names hold one of the words; all of them without words. The exit code is 1 if one got through."""
    chosen = [each for each in load().values() if not words or any(word in each.name for word in words)]
    if not chosen:
        print(f"no attack is called {' or '.join(words)}", file=sys.stderr)
        return 2
    width = max(len(each.name) for each in chosen)
    faults = []

    def show(name: str, values: list[str], verdict: str) -> None:
        print(name.ljust(width), *(value.rjust(9) for value in values), " " + verdict, flush=True)

    show(HEAD[0], list(HEAD[1:-1]), "")
    for each in chosen:
        report, wrong = run_loop(attempt(each))
        show(each.name, cells(report), "FELL" if wrong else "held")
        if wrong:
            faults.append(f"{each.name}: {wrong}")
    print(
        f"\n{len(chosen) - len(faults)} of {len(chosen)} held. A client published every 50 ms and waited for each "
        "acknowledgement: p50, p99 and worst are what it felt;\nown is the worst without the time in which the machine "
        "was busy with other processes. Memory is the hub's growth at its peak."
    )
    print("\n".join(faults), file=sys.stderr)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

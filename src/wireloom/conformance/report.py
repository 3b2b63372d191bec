"""An outcome for people and programs: a line a case, a page, JSON."""

from __future__ import annotations

from collections.abc import Mapping

from wireloom.conformance.run import CaseOutcome, CaseResult, CaseVerdict
from wireloom.escaping import visible, visible_html
from wireloom.model import type_of_json

_STYLE = """
:root { color-scheme: light dark; --edge: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--edge); padding: .4rem .6rem; text-align: left; vertical-align: top; }
.passed { color: #1a7f37; } .failed { color: #cf222e; font-weight: 600; } .differs { color: #9a6700; }
.skipped { color: #888; }
small { opacity: .75; display: block; }
"""


def line(result: CaseResult) -> str:
    """One case as a line of the table in the terminal.

    >>> from wireloom.conformance.run import choose
    >>> from wireloom.protocols.registry import protocol
    >>> from wireloom.protocols.contract import Role
    >>> print(line(CaseResult(choose(protocol("hsp"), Role.SERVER)[0], CaseVerdict.FAILED, "the peer closed")))
    failed   must     a PING is answered with a PONG: the peer closed
    """
    why = f": {result.detail}" if result.detail else ""
    return visible(f"{result.verdict:8} {result.case.level:8} {result.case.name}{why}")


def summary(outcome: CaseOutcome) -> str:
    """What came out, in a sentence."""
    passed, failed, differs, skipped = (outcome.count(verdict) for verdict in CaseVerdict)
    differing = f"{differs} differ from our decisions, " if differs else ""
    numbers = f"{passed} passed, {failed} failed, {differing}{skipped} skipped"
    if not outcome.conforms:
        return f"{numbers}: {outcome.undone} of what a {outcome.role} must do is not done"
    if not passed:
        return f"{numbers}: nothing is known"
    return f"{numbers}: the {outcome.role} conforms to {outcome.protocol.title}"


def to_json(outcome: CaseOutcome) -> Mapping[str, type_of_json]:
    """Everything that is known, for programs."""
    return {
        "protocol": outcome.protocol.name,
        "url": outcome.url,
        "role": str(outcome.role),
        "conforms": outcome.conforms,
        "counts": {str(verdict): outcome.count(verdict) for verdict in CaseVerdict},
        "cases": [
            {
                "name": each.case.name,
                "clause": each.case.clause,
                "level": str(each.case.level),
                "verdict": str(each.verdict),
                "detail": each.detail,
                "seconds": each.seconds,
            }
            for each in outcome.results
        ],
    }


def to_html(outcome: CaseOutcome) -> str:
    """A page that needs no other file and runs no script; what the peer said is text and nothing else."""
    title = visible_html(f"{outcome.protocol.title}: conformance of a {outcome.role}")
    rows = "\n".join(map(_row, outcome.results))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>{title}</h1>
<p><code>{visible_html(outcome.url)}</code></p>
<p class="{"passed" if outcome.conforms else "failed"}">{visible_html(summary(outcome))}</p>
<table>
<thead><tr><th>Verdict</th><th>Level</th><th>Case</th><th>Seconds</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>
</body>
</html>
"""


def _row(result: CaseResult) -> str:
    case, verdict = result.case, visible_html(result.verdict)
    why = f"<small>{visible_html(result.detail)}</small>" if result.detail else ""
    return (
        f'<tr><td class="{verdict}">{verdict}</td><td>{visible_html(case.level)}</td>'
        f"<td>{visible_html(case.name)}<small>{visible_html(case.clause)}</small>{why}</td>"
        f"<td>{result.seconds:.3f}</td></tr>"
    )

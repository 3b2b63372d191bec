"""Plots as SVG text, for a page that needs no script and nothing from elsewhere. Every text is escaped."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from wireloom.escaping import visible_html

WIDTH, HEIGHT = 860, 240
LEFT, RIGHT, TOP, BOTTOM = 70, 12, 12, 34

Series = Mapping[str, Sequence[tuple[float, float]]]


def number(value: float) -> str:
    """A number as people say it.

    >>> number(1234567), number(12), number(0.25)
    ('1.2 M', '12', '0.25')
    """
    for limit, unit in ((1e9, " G"), (1e6, " M"), (1e4, " k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == ' k' else limit):.1f}{unit}"
    return f"{value:g}" if value == int(value) or abs(value) >= 0.01 else f"{value:.1e}"


def microseconds(value: float) -> str:
    """A duration.

    >>> microseconds(250), microseconds(2500), microseconds(2.5e6)
    ('250 µs', '2.5 ms', '2.50 s')
    """
    if value < 1000:
        return f"{value:.0f} µs"
    return f"{value / 1000:.1f} ms" if value < 1e6 else f"{value / 1e6:.2f} s"


def moment(seconds: float, after: float | None = None) -> str:
    """A time of an axis: with its date, unless an earlier one (`after`) shows the same.

    >>> moment(90000), moment(93600, after=90000), moment(180000, after=90000)
    ('1970-01-02 01:00', '02:00', '1970-01-03 02:00')
    """
    at = datetime.fromtimestamp(seconds, UTC)
    is_same_day = after is not None and datetime.fromtimestamp(after, UTC).date() == at.date()
    return at.strftime("%H:%M" if is_same_day else "%Y-%m-%d %H:%M")


def lines(series: Series, title: str) -> str:
    """Values over time, a line each; times are seconds since 1970."""
    points = [point for each in series.values() for point in each]
    if not points:
        return empty(title)
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    span = max(last - first, 1.0)
    top = _round_up(max(y for _, y in points))

    def place(x: float, y: float) -> str:
        across = LEFT + (WIDTH - LEFT - RIGHT) * ((x - first) / span if last > first else 0.5)
        return f"{across:.1f},{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / top:.1f}"

    parts = _grid(top, number)
    for name, each in series.items():
        kind = f"line c-{visible_html(name)}"
        if len(each) == 1:
            across, up = place(*each[0]).split(",")
            parts.append(
                f'<circle class="{kind}" cx="{across}" cy="{up}" r="3"><title>{visible_html(name)}</title></circle>'
            )
        else:
            spots = " ".join(place(x, y) for x, y in each)
            parts.append(f'<polyline class="{kind}" points="{spots}"><title>{visible_html(name)}</title></polyline>')
    for at, anchor in ((first, "start"), (last, "end")) if last > first else ((first, "middle"),):
        text = moment(at, after=first if at > first else None)
        x = float(place(at, 0).split(",")[0])
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 14}" text-anchor="{anchor}">{text}</text>')
    return _figure(parts, title, series)


def bars(values: Sequence[tuple[str, float]], title: str, unit: Callable[[float], str] = number) -> str:
    """One bar a name, longest names cut."""
    if not values:
        return empty(title)
    height = 24 * len(values) + 8
    top = max(value for _, value in values) or 1
    parts = []
    for row, (name, value) in enumerate(values):
        y = 4 + 24 * row
        width = max(1.0, (WIDTH - 330) * value / top)
        label = f"{visible_html(_cut(name))}<title>{visible_html(name)}</title>"
        parts.append(f'<text x="250" y="{y + 16}" text-anchor="end">{label}</text>')
        parts.append(f'<rect class="bar" x="258" y="{y + 3}" width="{width:.1f}" height="17"/>')
        parts.append(f'<text x="{262 + width:.1f}" y="{y + 16}">{visible_html(unit(value))}</text>')
    return _figure(parts, title, {}, height)


def _cut(name: str, width: int = 36) -> str:
    """As much of a name as fits into a width, counted in letters; letters of East Asia are as wide as two.

    >>> _cut("short"), len(_cut("x" * 100)), len(_cut("\u6e29" * 100))
    ('short', 36, 18)
    """
    taken = 0
    for at, letter in enumerate(name):
        taken += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if taken > width:
            return name[: at - 1] + "…"
    return name


def histogram(values: Sequence[tuple[float, int]], title: str) -> str:
    """How many fell into each power of ten and its thirds; `values` are (lower end in microseconds, count)."""
    if not values:
        return empty(title)
    lowest, highest = math.log10(min(v for v, _ in values)), math.log10(max(v for v, _ in values)) + 1 / 3
    span = max(highest - lowest, 1 / 3)
    top = _round_up(max(count for _, count in values))
    parts = _grid(top, number)
    scale = (WIDTH - LEFT - RIGHT) / span
    for value, count in values:
        x = LEFT + (math.log10(value) - lowest) * scale
        tall = (HEIGHT - TOP - BOTTOM) * count / top
        parts.append(
            f'<rect class="bar" x="{x + 1:.1f}" y="{HEIGHT - BOTTOM - tall:.1f}" width="{scale / 3 - 2:.1f}" '
            f'height="{tall:.1f}"><title>from {microseconds(value)}: {count}</title></rect>'
        )
    for power in range(math.ceil(lowest), math.floor(highest) + 1):
        x = LEFT + (power - lowest) * scale
        anchor = "end" if x > WIDTH - RIGHT - 16 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 14}" text-anchor="{anchor}">{microseconds(10**power)}</text>')
    return _figure(parts, title, {})


def empty(title: str) -> str:
    """What stands where there is nothing to plot."""
    return f'<p class="none">{visible_html(title)}: nothing in these tables.</p>'


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power: float = 10 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value)


def _grid(top: float, unit: Callable[[float], str]) -> list[str]:
    parts = []
    for share in (0, 0.5, 1):
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{visible_html(unit(top * share))}</text>')
    return parts


def _figure(parts: Sequence[str], title: str, series: Series, height: float = HEIGHT) -> str:
    legend = "".join(f'<span class="c-{visible_html(name)}">{visible_html(name)}</span>' for name in series)
    key = f'<figcaption class="key">{legend}</figcaption>' if legend else ""
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{visible_html(title)}">'
        f"{''.join(parts)}</svg>{key}</figure>"
    )

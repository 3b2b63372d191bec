"""Counters and gauges of the hub, in the text format of Prometheus."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping

MOST = 1000
"""Maximum label sets of one metric."""
OTHER = "other"


class Counter:
    """A number that only grows, one per set of labels.

    >>> seen = Counter("seen_total", "Things seen.", "kind")
    >>> seen.add(2, "event"); seen.add(1, "event")
    >>> print(seen.text())
    # HELP seen_total Things seen.
    # TYPE seen_total counter
    seen_total{kind="event"} 3
    """

    type = "counter"

    def __init__(self, name: str, help_text: str, *labels: str) -> None:
        self.name, self.help, self.labels = name, help_text, labels
        self._values: dict[tuple[str, ...], float] = {}
        if not labels:
            self._values[()] = 0

    def add(self, amount: float, *labels: str) -> None:
        """Count. Beyond `MOST` label sets, count under `other`.

        Peers choose some labels, such as the status of an answer.
        """
        if labels not in self._values and len(self._values) >= MOST:
            labels = (OTHER,) * len(self.labels)
        self._values[labels] = self._values.get(labels, 0) + amount

    def value(self, *labels: str) -> float:
        """The count so far."""
        return self._values.get(labels, 0)

    def samples(self) -> dict[tuple[str, ...], float]:
        """All values by their labels."""
        return self._values

    def text(self) -> str:
        """The metric in Prometheus' exposition format."""
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.type}"]
        for values, amount in self.samples().items():
            labels = ",".join(f'{k}="{_escape(v)}"' for k, v in zip(self.labels, values, strict=True))
            lines.append(f"{self.name}{'{' + labels + '}' if labels else ''} {_number(amount)}")
        return "\n".join(lines)


class Gauge(Counter):
    """A number that is read when the metric is scraped."""

    type = "gauge"

    def __init__(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        super().__init__(name, help_text)
        self._read = read

    def samples(self) -> dict[tuple[str, ...], float]:
        """The value now."""
        return {(): self._read()}


class Histogram(Counter):
    """A histogram: for each bound, how many values were at most that large.

    >>> waits = Histogram("wait_seconds", "Waits.", (0.1, 1.0))
    >>> waits.add(0.05); waits.add(0.5); waits.add(7)
    >>> print(waits.text())
    # HELP wait_seconds Waits.
    # TYPE wait_seconds histogram
    wait_seconds_bucket{le="0.1"} 1
    wait_seconds_bucket{le="1"} 2
    wait_seconds_bucket{le="+Inf"} 3
    wait_seconds_sum 7.55
    wait_seconds_count 3
    """

    type = "histogram"

    def __init__(self, name: str, help_text: str, bounds: tuple[float, ...]) -> None:
        super().__init__(name, help_text)
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        """Counts by bucket: values above the previous bound and at most this one.

        The last bucket has no upper bound.
        """
        self._sum = 0.0

    def add(self, amount: float, *labels: str) -> None:
        """Record one value."""
        self._counts[bisect.bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def text(self) -> str:
        """The metric in Prometheus' exposition format."""
        lines = [f"# HELP {self.name} {self.help}", f"# TYPE {self.name} {self.type}"]
        count = 0
        for bound, more in zip((*self._bounds, math.inf), self._counts, strict=True):
            count += more
            lines.append(f'{self.name}_bucket{{le="{"+Inf" if bound == math.inf else f"{bound:g}"}"}} {count}')
        return "\n".join([*lines, f"{self.name}_sum {self._sum:.15g}", f"{self.name}_count {count}"])


class Listened(Counter):
    """Counters that are kept elsewhere and read when the metric is scraped."""

    def __init__(self, name: str, help_text: str, *labels: str, kind: str = "counter") -> None:
        super().__init__(name, help_text, *labels)
        self.type = kind
        self.read: Callable[[], Mapping[tuple[str, ...], float]] = dict

    def samples(self) -> dict[tuple[str, ...], float]:
        """The values now."""
        return dict(self.read())


def _number(amount: float) -> str:
    return "+Inf" if amount == math.inf else f"{amount:.15g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """All metrics of the hub."""

    def __init__(self) -> None:
        self.connections = Counter("wireloom_connections_total", "Connections accepted.", "protocol")
        self.received = Counter("wireloom_messages_received_total", "Messages accepted from peers.", "protocol")
        self.received_bytes = Counter("wireloom_bytes_received_total", "Bytes of accepted frames.", "protocol")
        self.sent = Counter(
            "wireloom_messages_sent_total",
            "Messages sent to peers: events, requests, answers and the rest.",
            "protocol",
        )
        self.delivered = Counter("wireloom_messages_delivered_total", "Events sent to subscribers.", "protocol")
        self.acknowledged = Counter(
            "wireloom_publishes_acknowledged_total", "Publishes acknowledged after the sync.", "protocol"
        )
        self.refused = Counter("wireloom_refused_total", "Streams and datagrams refused.", "protocol", "clause")
        self.lost = Counter("wireloom_events_lost_total", "Events dropped for slow consumers.", "protocol", "reason")
        self.unmatched = Counter("wireloom_events_unmatched_total", "Events that nobody subscribes to.", "protocol")
        self.undeliverable = Counter(
            "wireloom_undeliverable_total", "Events a peer's protocol could not express.", "protocol"
        )
        self.requests = Counter("wireloom_requests_total", "Requests by how they ended.", "protocol", "outcome")
        self.ignored = Counter("wireloom_ignored_total", "Harmless oddities of peers.", "protocol", "what")
        self.turned_away = Counter("wireloom_connections_refused_total", "Connections turned away.", "reason")
        self.cut_off = Counter(
            "wireloom_connections_limited_total", "Connections closed by a limit.", "protocol", "limit"
        )
        self.limits = Listened("wireloom_limit", "The limits in force.", "setting", kind="gauge")
        self.limits_used = Listened("wireloom_limit_used", "How much of a limit is used now.", "setting", kind="gauge")
        self.limits_reached = Counter(
            "wireloom_limits_reached_total", "Times that something was refused, cut or delayed by a limit.", "setting"
        )
        self.reloads = Counter("wireloom_reloads_total", "Configurations read anew, by what came of it.", "outcome")
        self.denied = Counter("wireloom_access_denied_total", "What no rule allows.", "protocol", "right")
        self.logins = Counter("wireloom_logins_total", "Tokens shown, by what came of it.", "protocol", "outcome")
        self.over_rate = Counter("wireloom_over_rate_total", "Reads of peers that sent too much.", "protocol", "policy")
        self.replayed = Counter(
            "wireloom_events_replayed_total", "Events read from the journal for subscribers.", "protocol"
        )
        self.read_errors = Counter(
            "wireloom_journal_read_errors_total", "Reads of the journal that failed, by who read.", "reader"
        )
        self.removed_segments = Counter("wireloom_journal_segments_removed_total", "Segments removed by retention.")
        self.removed_bytes = Counter("wireloom_journal_bytes_removed_total", "Bytes of segments removed by retention.")
        self.archived_segments = Counter("wireloom_archive_segments_total", "Segments archived.")
        self.archived_bytes = Counter("wireloom_archive_bytes_total", "Bytes of archived segments, uncompressed.")
        self.archive_stored_bytes = Counter(
            "wireloom_archive_stored_bytes_total", "Bytes of archived segments, as they are stored."
        )
        self.archive_failures = Counter(
            "wireloom_archive_failures_total", "Uploads that failed, by why: store, conflict, damaged, other.", "reason"
        )
        self.listeners = Listened(
            "wireloom_listener_total",
            "What listeners had to drop, to refuse or to forget too early.",
            "protocol",
            "what",
        )
        self.webhooks = Counter("wireloom_webhooks_total", "Events posted to webhooks.", "webhook", "outcome")
        self.stalls = Histogram(
            "wireloom_loop_stall_seconds",
            "How long the event loop was held, looked at every 20 ms.",
            (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
        )
        self._gauges: list[Gauge] = []

    def gauge(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge that reads a number kept elsewhere."""
        self._gauges.append(Gauge(name, help_text, read))

    def text(self) -> str:
        """All metrics in the exposition format."""
        counters = [metric for metric in vars(self).values() if isinstance(metric, Counter)]
        return "\n".join(metric.text() for metric in (*counters, *self._gauges)) + "\n"

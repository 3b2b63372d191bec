"""Spark's own UI and progress say what the pipeline is doing."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.conversations import make_conversations
from wireloom.pipeline import Pipeline
from wireloom.pipeline.query import describe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def ask_ui(spark: SparkSession, what: str) -> list[dict[str, Any]]:
    """What the UI's REST interface answers."""
    context = spark.sparkContext
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/{what}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def test_jobs_have_names_and_the_progress_has_counters(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener

    progress: list[Any] = []

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: object) -> None: ...  # noqa: N802

        def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
            progress.append(event.progress)

        def onQueryIdle(self, event: object) -> None: ...  # noqa: N802

        def onQueryTerminated(self, event: object) -> None: ...  # noqa: N802

    make_conversations(tmp_path / "j", seed=51, steps=150)
    before = {job["jobId"] for job in ask_ui(spark, "jobs")}
    listener = Listener()
    spark.streams.addListener(listener)
    try:
        summary = Pipeline([tmp_path / "j"], tmp_path / "w", spark=spark, options={"maxBytesPerTrigger": "20k"}).run()
        deadline = time.monotonic() + 120
        while len(progress) < summary.batches and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)
    assert summary.batches > 1
    counted = [each.observedMetrics["wireloom"].asDict() for each in progress]
    rows = describe(tmp_path / "w")
    assert sum(each["messages"] for each in counted) == summary.messages == rows["messages"].rows
    assert sum(each["rejects"] for each in counted) == summary.rejects == rows["rejects"].rows
    size = sum(path.stat().st_size for path in (tmp_path / "j").rglob("*.pcapng"))
    assert sum(each["bytes"] for each in counted) == size
    assert {each.name for each in progress} == {"wireloom"}
    named = [job.get("description") for job in ask_ui(spark, "jobs") if job["jobId"] not in before]
    for number in range(summary.batches):
        for step in (
            "decode, write messages and rejects",
            "join, write exchanges, sessions, traffic, findings and nodes",
        ):
            assert f"wireloom batch {number}: {step}" in named
    plans = [str(each["planDescription"]) for each in ask_ui(spark, "sql?length=100000&planDescription=true")]
    assert any("CollectMetrics" in plan and "wireloom" in plan for plan in plans)
    assert any("join_facts_of_task" in plan for plan in plans)

"""Spark's own UI and progress say what the pipeline is doing."""

from __future__ import annotations

import json
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


def test_jobs_have_names_and_the_summary_counts_what_the_tables_hold(spark: SparkSession, tmp_path: Path) -> None:
    make_conversations(tmp_path / "j", seed=51, steps=150)
    before = {job["jobId"] for job in ask_ui(spark, "jobs")}
    summary = Pipeline([tmp_path / "j"], tmp_path / "w", spark=spark, options={"maxBytesPerTrigger": "20k"}).run()
    assert summary.batches > 1
    rows = describe(tmp_path / "w")
    assert summary.messages == rows["messages"].rows
    assert summary.rejects == rows["rejects"].rows
    named = [job.get("description") for job in ask_ui(spark, "jobs") if job["jobId"] not in before]
    for number in range(summary.batches):
        for step in (
            "decode, write messages and rejects",
            "join, write exchanges, sessions, traffic, findings and nodes",
        ):
            assert f"wireloom batch {number}: {step}" in named
    plans = [str(each["planDescription"]) for each in ask_ui(spark, "sql?length=100000&planDescription=true")]
    assert any("join_facts_of_task" in plan for plan in plans)

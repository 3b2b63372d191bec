"""`df.write.format("wireloom")` and `df.writeStream.format("wireloom")`."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.types import StringType, StructField, StructType

import wireloom
from tests.pipeline.journals import COMPARED, expected_messages
from wireloom.model import ConfigError, Message
from wireloom.pipeline.schemas import MESSAGES, spark_schema
from wireloom.pipeline.send import SendCounts
from wireloom.pipeline.send_options import SendOptions
from wireloom.pipeline.sink import Sink, TaskSent
from wireloom.pipeline.source import WireloomSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

URL = "hsp://127.0.0.1:5042"


@contextmanager
def receiver(url: str = "yamp://127.0.0.1:0") -> Iterator[tuple[str, list[Message]]]:
    """A server in a thread of its own; tasks reach it from other processes."""
    got: list[Message] = []
    ready, urls = threading.Event(), list[str]()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def keep(message: Message, peer: wireloom.Peer) -> None:
        got.append(message)

    async def serve() -> None:
        async with wireloom.serve(url, keep) as server:
            urls.append(server.url)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    try:
        assert ready.wait(30)
        yield urls[0], got
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(30)
        loop.close()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_selected_rows_of_a_journal_arrive_in_order_and_a_stream_sends_the_same(
    spark: SparkSession, journal: Path, tmp_path: Path
) -> None:
    chosen = "kind = 'event' and topic = 'sensors/kitchen' and body_size < 100"
    names = ("time_us", "connection", "direction", "sequence", "body")
    rows = [dict(zip(COMPARED, row, strict=True)) for row in expected_messages(journal)]
    expected = sorted(
        tuple(row[name] for name in names)
        for row in rows
        if row["kind"] == "event" and row["topic"] == "sensors/kitchen" and len(row["body"]) < 100  # type: ignore[arg-type]
    )
    # A peer whose protocol takes bytes as they are.
    with receiver("emp://127.0.0.1:0") as (url, got):
        frame = spark.read.format("wireloom").load(str(journal)).where(chosen)
        ordered = frame.orderBy("time", "connection", "direction", "sequence").coalesce(1)
        ordered.write.format("wireloom").option("url", url).option("ack", "true").mode("append").save()
        assert [message.body for message in got] == [row[4] for row in expected]
        assert {message.topic for message in got} == {"sensors/kitchen"}

        got.clear()
        stream = spark.readStream.format("wireloom").load(str(journal)).where(chosen)
        query = (
            stream.writeStream.format("wireloom")
            .options(url=url, ack="true", topicPrefix="again/")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300)
        assert Counter(message.body for message in got) == Counter(row[4] for row in expected)
        assert {message.topic for message in got} == {"again/sensors/kitchen"}

    # Nobody listens there any more: the job fails, and says why.
    with pytest.raises(Exception, match=f"cannot reach {url}"):
        ordered.write.format("wireloom").option("url", url).mode("append").save()
    with pytest.raises(Exception, match="unknown option 'urll' for writing the format wireloom; known: ack, ca"):
        ordered.write.format("wireloom").option("urll", url).mode("append").save()


def test_what_all_tasks_sent_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [
        TaskSent(SendCounts(3, 3, skipped=Counter(ping=1))),
        TaskSent(SendCounts(2, 2, skipped=Counter(ping=1))),
        None,
    ]
    Sink(SendOptions(URL, ack=True)).commit(tasks)
    assert capsys.readouterr().err == f"wireloom: to {URL}: 5 published (5 acknowledged), 2 skipped (2 ping)\n"


def test_every_row_of_messages_can_be_written_and_overwriting_is_refused() -> None:
    source = WireloomSource({"url": URL, "pace": "1"})
    schema = spark_schema(MESSAGES.columns)
    assert isinstance(source.writer(schema, overwrite=False), Sink)
    with pytest.raises(ConfigError, match=r"cannot be overwritten; write with mode\('append'\)"):
        source.writer(schema, overwrite=True)
    with pytest.raises(ConfigError, match="the rows have no column 'topic'; to be sent they need topic, body, time"):
        source.streamWriter(StructType([StructField("body", StringType())]), overwrite=False)

"""The step that counts: messages and bytes of each minute, protocol, topic and kind."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from wireloom.pipeline.schemas import TRAFFIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELAY_S = 60
"""A minute counts as over when a message this much later than its end was seen."""

_MINUTE_US = 60_000_000
_DAY_US = 86_400_000_000


def traffic(messages: DataFrame, carried: DataFrame, over_before: datetime) -> DataFrame:
    """Rows of `traffic` for new messages, together with those that are carried over.

    `carried` are rows of `traffic` that may still change: the open ones, and those of minutes for which
    late messages came. Minutes that begin before `over_before` are over.
    """
    from pyspark.sql import functions as f

    # Arithmetic on microseconds: functions of dates would follow the session's time zone.
    minute = f.timestamp_micros(f.floor(f.unix_micros("time") / _MINUTE_US).cast("bigint") * _MINUTE_US)
    day = f.date_from_unix_date(f.floor(f.unix_micros("minute") / _DAY_US).cast("int"))
    new = messages.select(
        minute.alias("minute"),
        "protocol",
        "topic",
        "kind",
        f.lit(1).cast("bigint").alias("messages"),
        f.col("wire_size").cast("bigint").alias("bytes"),
    )
    keys = ["minute", "protocol", "topic", "kind"]
    counted = (
        new.unionByName(carried.select(*keys, "messages", "bytes"))
        .groupBy(*keys)
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    )
    return counted.select(
        *keys,
        "messages",
        "bytes",
        day.alias("date"),
        (f.col("minute") >= f.lit(over_before)).alias("open"),
    ).select(*TRAFFIC.names)

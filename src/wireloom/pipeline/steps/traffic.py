"""The step that counts: messages and bytes of each minute, protocol, topic and kind.

In two parts, because a count is so much smaller than what it counts: each worker counts the messages it
has just decoded (`count_minutes`), and Spark adds these counts to the rows that may still change (`traffic`).
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from wireloom.pipeline.schemas import MINUTES, TRAFFIC, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

DELAY_S = 60
"""A minute counts as over when a message this much later than its end was seen."""
MINUTE_US = 60_000_000
_DAY_US = 86_400_000_000
_KEYS = MINUTES.names[:4]


def count_minutes(messages: pa.Table) -> pa.Table:
    """Rows of `MINUTES` for some rows of `messages`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = messages["time"].cast(pa.int64())
    numbered = pa.table(
        {
            "minute": pc.multiply(pc.divide(micros, MINUTE_US), MINUTE_US),
            **{name: messages[name] for name in _KEYS[1:]},
            "size": messages["wire_size"],
        }
    )
    counted = numbered.group_by(list(_KEYS)).aggregate([("size", "count"), ("size", "sum")])
    return counted.rename_columns(list(MINUTES.names)).cast(arrow_schema(MINUTES.columns))


def traffic(counts: DataFrame, carried: DataFrame, over_before: datetime) -> DataFrame:
    """Rows of `traffic`: new counts, added to those that are carried over.

    `counts` has the columns of `MINUTES`. `carried` are rows of `traffic` that may still change: the open ones,
    and those of days for which late messages came. Minutes that begin before `over_before` are over.
    """
    from pyspark.sql import functions as f

    # Arithmetic on microseconds: functions of dates would follow the session's time zone.
    day = f.date_from_unix_date(f.floor(f.unix_micros("minute") / _DAY_US).cast("int"))
    summed = (
        counts.unionByName(carried.select(*MINUTES.names))
        .groupBy(*_KEYS)
        .agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    )
    opened = f.col("minute") >= f.lit(over_before)
    return summed.select("*", day.alias("date"), opened.alias("open")).select(*TRAFFIC.names)

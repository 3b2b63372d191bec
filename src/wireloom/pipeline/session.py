"""Starts Spark with settings that suit one machine; everything can be overridden by `conf`.

Workers must be this Python, with this package, whatever the path says.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import wireloom
from wireloom.model import ConfigError
from wireloom.pipeline.java import find_java, home_for_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*,4]"
"""All cores; a task that loses its Python worker is tried again, up to four times."""

_REGISTERED = "wireloom.registered"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "


def start_session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    app: str = "wireloom",
    *,
    quick: bool = False,
) -> SparkSession:
    """A Spark session that knows the format `wireloom`.

    `master` is any master Spark understands; by default all cores of this machine. `conf` are Spark's
    own settings and win over the defaults made here. `quick` is for jobs that leave the work to Python: Java
    starts sooner, and never takes the time to become fast.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError(
            "the pipeline needs PySpark, which is not installed: run `pip install 'wireloom[spark]'`"
        ) from None

    master = master or LOCAL
    _prepare_environment()
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in {**settings(master, quick=quick), **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def warm_up(spark: SparkSession) -> None:
    """Run a small job of the kind a first batch runs, while Spark still plans that batch.

    It starts the Python workers and loads the classes of an aggregation, on a core that would be idle.
    """
    with contextlib.suppress(Exception):
        rows = spark.range(2).groupBy("id").count()
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()


def register(spark: SparkSession) -> None:
    """Teach a Spark session the format `wireloom`."""
    from wireloom.pipeline.files import DecodedFiles
    from wireloom.pipeline.source import WireloomSource

    if spark.conf.get(_REGISTERED, None) is None:
        spark.dataSource.register(WireloomSource)
        spark.dataSource.register(DecodedFiles)
        spark.conf.set(_REGISTERED, "true")


def settings(master: str = LOCAL, *, quick: bool = False) -> dict[str, str]:
    """What Wireloom sets beyond Spark's defaults."""
    log = files("wireloom.pipeline").joinpath("log4j2.properties")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "wireloom.pipeline.daemon",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }
    if master.startswith("local"):
        chosen |= {
            "spark.driver.extraJavaOptions": f"{_QUICK if quick else ''}-XX:-UsePerfData "
            f"-Dlog4j2.configurationFile={Path(str(log)).as_uri()}",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 2, 16)),
            "spark.sql.adaptive.enabled": "false",
        }
    return chosen


def _prepare_environment() -> None:
    """Tell Spark which Java and which Python; must happen before its first session."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not _running():
        java = find_java()
        home = home_for_spark(java)
        if home != java.home:
            atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Workers find the package where this process found it, installed or not.
    own = str(Path(wireloom.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if own not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([own, *filter(None, known)])


def _running() -> bool:
    """Whether this process has a Spark already; its Java is then given."""
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None

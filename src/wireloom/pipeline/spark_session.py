"""Starts Spark with settings that suit one machine; everything can be overridden by `conf`.

Workers must be this Python, with this package, whatever the path says.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import wireloom
from wireloom.model import ConfigError
from wireloom.pipeline.java import find_java, home_for_spark
from wireloom.pipeline.spark_home import use_installed_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*,4]"
"""All cores; a task that loses its Python worker is tried again, up to four times."""

_OF_SESSIONS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
"""Settings that each session has for itself."""
_REGISTERED = "wireloom.registered"
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 "


def start_session(
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    app: str = "wireloom",
    *,
    quick: bool = False,
    remote: str | None = None,
) -> SparkSession:
    """A Spark session that knows the format `wireloom`.

    `master` is any master Spark understands; by default all cores of this machine. `remote` is the address of a Spark
    Connect server instead, such as sc://spark.example.org:15002. `conf` are Spark's
    own settings and win over the defaults made here. `quick` is for jobs that leave the work to Python: Java
    starts sooner, and never takes the time to become fast.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ConfigError(
            "the pipeline needs PySpark, which is not installed: run `pip install 'wireloom[spark]'`"
        ) from None

    if remote:
        return _connect(remote, conf or {})
    master = master or LOCAL
    _prepare_environment(worker_python(master, conf or {}))
    builder = SparkSession.builder.appName(app).master(master)
    for name, value in {**settings(master, quick=quick), **(conf or {})}.items():
        builder = builder.config(name, value)
    if master.startswith("local"):
        use_installed_pyspark()
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _connect(remote: str, conf: Mapping[str, str]) -> SparkSession:
    """A session of a server that runs already: its master, its Python and its memory are given."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    if not remote.startswith("sc://"):
        raise ConfigError(f"{remote!r} is no address of Spark Connect; it looks like sc://spark.example.org:15002")
    if _running():
        raise ConfigError("this process has a Spark of its own already: stop it before you connect to another")
    try:
        builder = SparkSession.builder.remote(remote)
        for name, value in {**_OF_SESSIONS, **conf}.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        register(spark)
    except ImportError as error:
        raise ConfigError(
            f"Spark Connect needs further packages: run `pip install 'wireloom[connect]'` ({error})"
        ) from None
    except PySparkException as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigError(f"{remote}: cannot connect: {first}; is a Spark Connect server running there?") from None
    return spark


def is_remote(spark: SparkSession) -> bool:
    """Whether a session is one of Spark Connect."""
    from pyspark.sql import SparkSession

    return not isinstance(spark, SparkSession)


def parallelism(spark: SparkSession) -> int:
    """How many tasks may run at a time."""
    if not is_remote(spark):
        return spark.sparkContext.defaultParallelism
    session = str(getattr(spark, "session_id", ""))
    if session not in _PARALLELISM:
        from pyspark.sql import functions as f

        # What a server says to those who do not ask for a number of partitions.
        numbers = spark.range(1 << 10).select(f.spark_partition_id().alias("part"))
        _PARALLELISM[session] = numbers.distinct().count()
    return _PARALLELISM[session]


_PARALLELISM: dict[str, int] = {}


@contextlib.contextmanager
def described(spark: SparkSession, text: str) -> Iterator[None]:
    """Say in Spark's UI what the jobs that are begun now are for."""
    if is_remote(spark):
        # A server describes jobs itself; what can be added are tags, which have no commas.
        tag = text.replace(",", " +")
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context = spark.sparkContext
    before = context.getLocalProperty("spark.job.description")
    context.setJobDescription(text)
    try:
        yield
    finally:
        context.setLocalProperty("spark.job.description", before)  # type: ignore[arg-type] # None takes it away


def warm_up(spark: SparkSession) -> None:
    """Run a small job of the kind a first batch runs, while Spark still plans that batch.

    It starts the Python workers and loads the classes of an aggregation, on a core that would be idle.
    """
    with contextlib.suppress(Exception):
        rows = spark.range(2).groupBy("id").count()
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()


def register(spark: SparkSession) -> None:
    """Teach a Spark session the format `wireloom`, and have it hand filters to such sources."""
    from wireloom.pipeline.source import FilteringSource

    if spark.conf.get(_REGISTERED, None) is None:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        spark.dataSource.register(FilteringSource)
        spark.conf.set(_REGISTERED, "true")


def settings(master: str = LOCAL, *, quick: bool = False) -> dict[str, str]:
    """What Wireloom sets beyond Spark's defaults."""
    log = files("wireloom.pipeline").joinpath("log4j2.properties")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "wireloom.pipeline.daemon",
        **_OF_SESSIONS,
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


def worker_python(master: str, conf: Mapping[str, str]) -> str:
    """The Python of the workers: on this machine the one that runs; elsewhere, if it is said, another one.

    >>> worker_python("yarn", {"spark.pyspark.python": "./environment/bin/python"})
    './environment/bin/python'
    """
    if master.startswith("local"):
        return sys.executable
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def _prepare_environment(python: str) -> None:
    """Tell Spark which Java and which Python; must happen before its first session."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ and not _running():
        java = find_java()
        home = home_for_spark(java)
        if home != java.home:
            atexit.register(shutil.rmtree, home, ignore_errors=True)
        os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_PYTHON"] = python
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

"""One Spark session for all tests of the pipeline that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.pipeline.journals import make_journal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from wireloom.pipeline import start_session

    shown = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.ui.retainedJobs": "100000"}
    session = start_session(app="tests", conf=shown, quick=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of several segments; nobody writes to it."""
    folder = tmp_path_factory.mktemp("shared") / "journal"
    make_journal(folder)
    return folder

"""A Spark home without the zipped copy of PySpark.

Spark puts that copy first on the path of every Python process it starts. What is imported from a zip is compiled
anew each time, which costs each of those processes a second; the package that is installed is compiled already. So on
one machine Spark is given a folder of links to everything but the copy.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_LINKED = ("bin", "jars", "sbin", "data", "RELEASE")


def without_zip(spark_home: Path) -> Path:
    """A folder for temporary files that Spark takes for its home; it lives as long as the caller lets it."""
    home = Path(tempfile.mkdtemp(prefix="wireloom-spark-"))
    for name in _LINKED:
        if (spark_home / name).exists():
            (home / name).symlink_to(spark_home / name)
    return home


def use_installed_pyspark() -> None:
    """Let the Python processes of a Spark that is about to start import the PySpark that is installed here.

    Whoever has set SPARK_HOME, or has a Spark already, keeps it.
    """
    import pyspark

    if "SPARK_HOME" in os.environ or pyspark.SparkContext._active_spark_context is not None:
        return
    home = without_zip(Path(pyspark.__file__).resolve().parent)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    os.environ["SPARK_HOME"] = str(home)

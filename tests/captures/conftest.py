"""One Spark session for the tests that need one."""

from __future__ import annotations

from tests.pipeline.conftest import spark

__all__ = ["spark"]

"""The pipeline: journals in, Spark tables out. The only room that imports pyspark."""

from wireloom.pipeline.batch import PipelineFailed
from wireloom.pipeline.driver import MicroBatch
from wireloom.pipeline.run import Pipeline, Summary
from wireloom.pipeline.spark_session import register, start_session
from wireloom.pipeline.warehouse import Warehouse

__all__ = ["MicroBatch", "Pipeline", "PipelineFailed", "Summary", "Warehouse", "register", "start_session"]

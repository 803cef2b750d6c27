"""Exports many functions in parallel, in other processes."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("export_many"):
    import jax as _jax  # noqa: F401

from jax2tf_bridge.parallel._executors import ExportWorkers, RayExecutor, WorkerFuture
from jax2tf_bridge.parallel._export_many import export_many
from jax2tf_bridge.parallel._jobs import ExportJob

__all__ = ["ExportJob", "ExportWorkers", "RayExecutor", "WorkerFuture", "export_many"]

"""Exports many functions in parallel, in other processes."""

from jax2tf_bridge.parallel._executors import ExportWorkers, RayExecutor, WorkerFuture
from jax2tf_bridge.parallel._export_many import export_many
from jax2tf_bridge.parallel._jobs import ExportJob

__all__ = ["ExportJob", "ExportWorkers", "RayExecutor", "WorkerFuture", "export_many"]

"""Many exports at once, in other processes."""

from jax2tf_bridge.parallel._jobs import ExportJob
from jax2tf_bridge.parallel._many import export_many
from jax2tf_bridge.parallel._ray import RayExecutor
from jax2tf_bridge.parallel._workers import ExportWorkers, WorkerFuture

__all__ = ["ExportJob", "ExportWorkers", "RayExecutor", "WorkerFuture", "export_many"]

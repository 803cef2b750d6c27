"""export_many on executors of others: threads, processes, Dask, Ray."""

import multiprocessing
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jax2tf_bridge import export, serialize
from jax2tf_bridge.errors import (
    DTypeError,
    ExportManyError,
    JobError,
    NotPicklableError,
    WorkerDiedError,
)
from jax2tf_bridge.parallel import ExportJob, RayExecutor, export_many

# Private: sets any option of JAX within a block.
from jax2tf_bridge.parallel._configuration import use_configuration
from tests.fresh_process import run_script
from tests.parallel import functions
from tests.parallel.functions import Layer, Point, WrongSize

ROOT = Path(__file__).resolve().parents[2]
X = np.ones((4, 2), np.float32)
JOBS = {
    "dense": ExportJob(functions.dense, [X], polymorphic_shapes="(b, 2)", vjp_order=1),
    "jitted": ExportJob(functions.jitted, [X]),
    "of JAX": ExportJob(jax.nn.relu, [X]),
    "types": ExportJob(functions.layer, [Layer(np.ones((2, 3)), np.ones(3)), X]),
    "raises": ExportJob(functions.raises, [X]),
}


def _spawning(workers: int, **options: Any) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(workers, mp_context=context, **options)


def _check(executor: Executor) -> None:
    """Checks what every executor has to bring back."""
    with use_configuration({"jax_traceback_in_locations_limit": 0}):
        with pytest.raises(ExportManyError) as caught:
            export_many(JOBS, executor=executor)
        results = caught.value.results
        assert list(results) == ["dense", "jitted", "of JAX", "types"]
        for name in ("dense", "jitted", "of JAX"):
            job = JOBS[name]
            here = export(job.function, polymorphic_shapes=job.polymorphic_shapes)(*job.args)
            assert serialize(results[name]) == serialize(here, vjp_order=job.vjp_order), name
    assert results["types"].out_tree.unflatten(iter("ab")) == Point("a", Layer("b", None))
    error = caught.value.errors["raises"]
    assert isinstance(error, JobError)
    assert isinstance(error.__cause__, WrongSize)
    assert error.__cause__.size == 4


def test_threads() -> None:
    with ThreadPoolExecutor(2) as executor:
        _check(executor)


def test_threads_have_the_configuration_of_the_caller() -> None:
    with ThreadPoolExecutor(1) as executor, jax.enable_x64(True):
        portable = export_many([ExportJob(functions.double, [np.ones(2)])], executor=executor)
    assert str(portable["double"].out_avals[0]) == "float64[2]"


@pytest.mark.costly
def test_processes() -> None:
    """And what they cannot be sent, or would come to them as something else."""
    with _spawning(1) as executor:
        _check(executor)
        jobs = {
            "nameless": ExportJob(lambda x: x, [X]),
            "static": ExportJob(
                jax.jit(functions.power, static_argnums=1), [X, functions.LOCK], name="static"
            ),
            "good": ExportJob(functions.double, [X]),
        }
        with pytest.raises(ExportManyError) as caught:
            export_many(jobs, executor=executor)
        assert list(caught.value.results) == ["good"]
        nameless, static = (caught.value.errors[name] for name in ("nameless", "static"))
        assert isinstance(nameless, NotPicklableError)
        assert nameless.culprit.endswith("<lambda>")
        assert "(executor=None), which accept any" in str(nameless)
        assert isinstance(static, NotPicklableError)
        assert "lock" in str(static)

        with jax.enable_x64(True), pytest.raises(ExportManyError) as caught:
            export_many([ExportJob(functions.double, [X])], executor=executor)
        cause = caught.value.errors["double"].__cause__
        assert isinstance(cause, DTypeError)
        assert "JAX_ENABLE_X64=1" in str(cause)

        # A process that dies takes the executor with it, so this comes last.
        with pytest.raises(ExportManyError) as caught:
            export_many([ExportJob(functions.dies, [X])], executor=executor)
        error = caught.value.errors["dies"]
        assert isinstance(error, WorkerDiedError)
        assert error.exit_code is None
        assert "bridge's own workers (executor=None) name the job" in str(error)


class _Task:
    """A function as ray.remote returns it."""

    def __init__(self, function: Any, executor: ThreadPoolExecutor) -> None:
        self.function, self.executor = function, executor

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        submitted = self.executor.submit(self.function, *args, **kwargs)

        class Reference:
            def future(self) -> Any:
                return submitted

        return Reference()


def test_what_is_made_of_ray_is_an_executor() -> None:
    made = []
    with ThreadPoolExecutor(1) as threads:

        def remote(function: Any) -> _Task:
            made.append(function)
            return _Task(function, threads)

        with RayExecutor(remote) as executor:
            assert [f.result() for f in [executor.submit(abs, -n) for n in (1, 2)]] == [1, 2]
            _check(executor)
        assert made.count(abs) == 1
        with pytest.raises(RuntimeError, match="was shut down"):
            executor.submit(abs, 1)


_DASK = """
import jax, numpy as np
from dask.distributed import Client, LocalCluster
from tests.parallel.test_executors import _check

if __name__ == "__main__":
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        _check(client.get_executor())
        print("done")
"""

_RAY = """
import ray

# Before JAX starts its threads, since it forks.
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
from jax2tf_bridge.parallel import RayExecutor
from tests.parallel.test_executors import _check

with RayExecutor(ray.remote) as executor:
    _check(executor)
ray.shutdown()
print("done")
"""


@pytest.mark.slow
@pytest.mark.checkout
def test_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert "done" in run_script(_DASK, tmp_path)


@pytest.mark.slow
@pytest.mark.checkout
def test_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray has no wheels for this platform")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert "done" in run_script(_RAY, tmp_path)

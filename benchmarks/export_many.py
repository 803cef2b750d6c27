"""Eight exports of a transformer: sequentially, and in four processes of each kind.

Each round times every way, in a random order. "Cold" includes the start of the processes; "warm"
reuses processes of an earlier call. The CPU time of the busiest process is the time that the
exports would take on idle cores; it is unknown for processes that have exited.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _measure as measure
from benchmarks._models import Model, transformer
from jax2tf_bridge import export, serialize
from jax2tf_bridge.parallel import ExportJob, ExportWorkers, RayExecutor, export_many

PROCESSES = 4
LAYERS, WIDTH = 12, 256


@functools.cache
def model() -> Model:
    """Makes the transformer once per process."""
    return transformer(LAYERS, WIDTH)


def apply(weights: Any, x: Any) -> Any:
    """Runs the transformer; every executor can import this function by name."""
    return model().apply(weights, x)


def jobs() -> dict[str, ExportJob]:
    """Makes eight jobs: static and open sizes for CPU, GPU, TPU and all, each with its VJP."""
    jobs_by_name = {}
    for platforms in (["cpu"], ["cuda"], ["tpu"], None):
        for name, shapes in (("static", None), ("open", [None, f"(b, l, {WIDTH})"])):
            jobs_by_name[f"{name}, {platforms[0] if platforms else 'all'}"] = ExportJob(
                apply,
                [model().weights, model().inputs(8)],
                polymorphic_shapes=shapes,
                platforms=platforms,
                vjp_order=1,
            )
    return jobs_by_name


def one_after_another(todo: Mapping[str, ExportJob]) -> None:
    """Exports the jobs sequentially, without export_many."""
    for job in todo.values():
        portable = export(
            job.function, polymorphic_shapes=job.polymorphic_shapes, platforms=job.platforms
        )(*job.args)
        serialize(portable, vjp_order=job.vjp_order)


@contextmanager
def executors() -> Iterator[dict[str, Callable[[], Executor]]]:
    """Yields executors by name; after a warm-up call, their processes have loaded JAX."""
    with ExitStack() as stack:
        import ray
        from dask.distributed import Client, LocalCluster

        cluster = stack.enter_context(
            LocalCluster(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None)
        )
        client = stack.enter_context(Client(cluster))
        workers = stack.enter_context(ExportWorkers(PROCESSES))
        spawning = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(PROCESSES, mp_context=spawning))
        yield {
            "own processes, warm": lambda: workers,
            "ProcessPoolExecutor, warm": lambda: pool,
            "Dask, warm": client.get_executor,
            "Ray, warm": lambda: RayExecutor(ray.remote),
        }


def cpu_times() -> dict[int, float]:
    """Returns the CPU seconds of this process and of all its descendants (Linux)."""
    tick = os.sysconf("SC_CLK_TCK")
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has just exited
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            seconds[number] = (int(fields[11]) + int(fields[12])) / tick
    descendants = {os.getpid()}
    while new := {n for n, parent in parents.items() if parent in descendants} - descendants:
        descendants |= new
    return {number: seconds[number] for number in descendants}


def busiest(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Returns the CPU seconds of the busiest process."""
    return max(after[number] - before[number] for number in before.keys() & after.keys())


def main() -> None:
    import ray

    arguments = measure.make_parser(__doc__, rounds=5).parse_args()
    # The processes of Ray and Dask inherit this.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    ray.init(
        num_cpus=PROCESSES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    todo = jobs()
    with executors() as warm_executors:

        def with_executor(make: Callable[[], Executor]) -> Callable[[], object]:
            return lambda: export_many(todo, executor=make())

        ways: dict[str, Callable[[], object]] = {
            "one after another": lambda: one_after_another(todo),
            "own processes, cold": lambda: export_many(todo, workers=PROCESSES),
            **{name: with_executor(make) for name, make in warm_executors.items()},
        }
        for name, way in ways.items():
            measure.print_progress(f"{name}, to warm up")
            way()
        times: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds):
            order = list(ways)
            random.Random(number).shuffle(order)
            for name in order:
                measure.print_progress(f"round {number + 1} of {arguments.rounds}: {name}")
                before, start = cpu_times(), time.perf_counter()
                ways[name]()
                times[name].append(time.perf_counter() - start)
                cpu[name].append(busiest(before, cpu_times()))
    ray.shutdown()

    rows, measured = [], []
    baseline = "one after another"
    for name, seconds in times.items():
        ratio, cpu_ratio = (
            measure.compute_ratios(seconds_of, name, baseline) for seconds_of in (times, cpu)
        )
        row = [name, measure.seconds_text(median(seconds)), ratio.ratio_text()]
        has_cpu_time = not name.endswith("cold")
        row += (
            [measure.seconds_text(median(cpu[name])), cpu_ratio.ratio_text()]
            if has_cpu_time
            else [""] * 2
        )
        rows.append(row)
        measured.append({"way": name, "seconds": seconds, "ratio": ratio, "cpu": cpu[name]})
    measure.report(
        f"Eight exports of a transformer, {PROCESSES} processes",
        ["exported", "median", "x", "CPU time of the busiest process", "x"],
        rows,
        measured,
        json_path=arguments.json,
    )


if __name__ == "__main__":
    # Runs the module under its real name, so that other processes can import its functions.
    from benchmarks.export_many import main as run

    run()

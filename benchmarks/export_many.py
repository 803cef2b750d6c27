"""Eight exports of a transformer: one after another, and in four processes of each kind.

Each round times every way, in an order of its own. "Cold" has the start of the processes in it,
"warm" has not: there they are kept from an earlier call. The CPU time of the process that had most
to do is how long it would take on cores that are free; of processes that are gone it is not known.
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
    """The transformer, made once a process."""
    return transformer(LAYERS, WIDTH)


def apply(weights: Any, x: Any) -> Any:
    """At the top of a module, where every executor finds it."""
    return model().apply(weights, x)


def jobs() -> dict[str, ExportJob]:
    """Eight: static and open sizes, for the CPU, the GPU, the TPU and all, each with its VJP."""
    made = {}
    for platforms in (["cpu"], ["cuda"], ["tpu"], None):
        for name, shapes in (("static", None), ("open", [None, f"(b, l, {WIDTH})"])):
            made[f"{name}, {platforms[0] if platforms else 'all'}"] = ExportJob(
                apply,
                [model().weights, model().inputs(8)],
                polymorphic_shapes=shapes,
                platforms=platforms,
                vjp_order=1,
            )
    return made


def one_after_another(todo: Mapping[str, ExportJob]) -> None:
    """As without export_many."""
    for job in todo.values():
        portable = export(
            job.function, polymorphic_shapes=job.polymorphic_shapes, platforms=job.platforms
        )(*job.args)
        serialize(portable, vjp_order=job.vjp_order)


@contextmanager
def executors() -> Iterator[dict[str, Callable[[], Executor]]]:
    """Executors with processes that have JAX already, by name."""
    with ExitStack() as stack:
        import ray
        from dask.distributed import Client, LocalCluster

        cluster = stack.enter_context(
            LocalCluster(n_workers=PROCESSES, threads_per_worker=1, dashboard_address=None)
        )
        client = stack.enter_context(Client(cluster))
        own = stack.enter_context(ExportWorkers(PROCESSES))
        spawning = multiprocessing.get_context("spawn")
        pool = stack.enter_context(ProcessPoolExecutor(PROCESSES, mp_context=spawning))
        yield {
            "own processes, warm": lambda: own,
            "ProcessPoolExecutor, warm": lambda: pool,
            "Dask, warm": client.get_executor,
            "Ray, warm": lambda: RayExecutor(ray.remote),
        }


def cpu_times() -> dict[int, float]:
    """The CPU seconds of this process and of all that it started, directly or not (Linux)."""
    tick = os.sysconf("SC_CLK_TCK")
    parents, seconds = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            number = int(path.parent.name)
            parents[number] = int(fields[1])
            seconds[number] = (int(fields[11]) + int(fields[12])) / tick
    own = {os.getpid()}
    while more := {n for n, parent in parents.items() if parent in own} - own:
        own |= more
    return {number: seconds[number] for number in own}


def busiest(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """The CPU seconds of the process that had most to do."""
    return max(after[number] - before[number] for number in before.keys() & after.keys())


def main() -> None:
    import ray

    arguments = measure.parser(__doc__, rounds=5).parse_args()
    # In the processes of the others too.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    ray.init(
        num_cpus=PROCESSES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    todo = jobs()
    with executors() as kept:

        def with_executor(make: Callable[[], Executor]) -> Callable[[], object]:
            return lambda: export_many(todo, executor=make())

        ways: dict[str, Callable[[], object]] = {
            "one after another": lambda: one_after_another(todo),
            "own processes, cold": lambda: export_many(todo, workers=PROCESSES),
            **{name: with_executor(make) for name, make in kept.items()},
        }
        for name, way in ways.items():
            measure.progress(f"{name}, to warm up")
            way()
        times: dict[str, list[float]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds):
            order = list(ways)
            random.Random(number).shuffle(order)
            for name in order:
                measure.progress(f"round {number + 1} of {arguments.rounds}: {name}")
                before, start = cpu_times(), time.perf_counter()
                ways[name]()
                times[name].append(time.perf_counter() - start)
                cpu[name].append(busiest(before, cpu_times()))
    ray.shutdown()

    rows, measured = [], []
    baseline = "one after another"
    for name, seconds in times.items():
        ratio, cpu_ratio = (measure.ratios(of, name, baseline) for of in (times, cpu))
        row = [name, measure.seconds_text(median(seconds)), ratio.ratio_text()]
        known = not name.endswith("cold")
        row += (
            [measure.seconds_text(median(cpu[name])), cpu_ratio.ratio_text()] if known else [""] * 2
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
    # Under its own name, so that the functions of this file are found by it in other processes.
    from benchmarks.export_many import main as run

    run()

"""Executors for `export_many`: ExportWorkers starts processes, RayExecutor starts Ray tasks."""

from __future__ import annotations

import contextlib
import numbers
import os
import queue
import threading
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar, cast

import jax

from jax2tf_bridge._utils import as_integer
from jax2tf_bridge.errors import ExportError
from jax2tf_bridge.parallel._configuration import read_configuration, use_configuration
from jax2tf_bridge.parallel._failures import Failure
from jax2tf_bridge.parallel._worker_process import WorkerProcess

P = ParamSpec("P")
T = TypeVar("T")


class WorkerFuture(Future[T]):
    """Future of a call in a worker.

    Attributes:
      output: the last 64 kB that the worker printed during the call; set when it is done.
    """

    output: str = ""


@dataclass(frozen=True)
class _SubmittedCall:
    future: WorkerFuture[Any]
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    configuration: Mapping[str, Any] = field(default_factory=read_configuration)


@dataclass
class _ExecutorState:
    """State that an executor shares with its threads, which must not keep it alive.

    `idle` counts the threads that wait for a call.
    """

    environment: Mapping[str, str]
    initializer: Callable[[], object] | None
    timeout: float | None
    calls: queue.SimpleQueue[_SubmittedCall | None] = field(default_factory=queue.SimpleQueue)
    lock: threading.Lock = field(default_factory=threading.Lock)
    idle: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    processes: set[WorkerProcess] = field(default_factory=set)
    killed: bool = False

    def kill(self) -> None:
        """Kills all processes; this wakes the threads that wait for them."""
        with self.lock:
            self.killed = True
            for process in self.processes:
                process.kill()


class ExportWorkers(Executor):
    """Local worker processes (Linux or macOS), each with its own JAX, for `export_many`.

    A process starts when there is work for it, and stays until `shutdown` or the end of this
    process. If it dies, its job fails, and another process replaces it. A worker has the sys.path
    and the working folder of this process at its start, and the environment that this process had
    when the executor was made. Functions of the main script are sent by value; the script does not
    run again.

    This is a concurrent.futures.Executor: `submit` calls any function in a worker. Reuse it for
    several calls of `export_many`, so that workers start only once:

    >>> import jax.numpy as jnp, numpy as np
    >>> from jax2tf_bridge.parallel import ExportJob, export_many
    >>> with ExportWorkers(1) as workers:
    ...     first = export_many([ExportJob(jnp.sin, [np.ones(3)])], executor=workers)
    ...     second = export_many([ExportJob(jnp.cos, [np.ones(3)])], executor=workers)
    >>> list(first), list(second)
    (['sin'], ['cos'])
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        initializer: Callable[[], object] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Makes the executor; processes start when there is work for them.

        Args:
          workers: the maximum number of processes; by default the number of cores.
          environment: environment variables to add in the workers, such as
            {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}. JAX_PLATFORMS is "cpu" by
            default, because exporting for an accelerator does not need one and the workers would
            compete for it.
          initializer: a function that each worker calls first, for example to register pytree
            nodes of the main script with JAX.
          timeout: the maximum duration of a call in seconds; a slower process is killed.

        Raises:
          ExportError: `workers` is less than 1, `timeout` is not a positive number, `environment`
            is not a dict of texts, or `initializer` is not a function.
        """
        count = _count_cores() if workers is None else as_integer(workers)
        if count is None or count < 1:
            raise ExportError(
                f"workers must be a number of processes, at least 1. Got: {workers!r}."
            )
        number: object = timeout  # which may be NumPy's
        if timeout is not None and not (isinstance(number, numbers.Real) and timeout > 0):
            raise ExportError(
                f"timeout must be a number of seconds above 0, or None. Got: {timeout!r}."
            )
        if initializer is not None and not callable(initializer):
            raise ExportError(f"initializer must be a function, or None. Got: {initializer!r}.")
        self._shared = _ExecutorState(_merge_environment(environment or {}), initializer, timeout)
        self._count = count
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_shut_down = False
        # If nobody shuts it down, the threads end after the submitted calls, and their processes
        # with them. A worker whose parent ends, ends by itself.
        weakref.finalize(self, self._shared.calls.put, None).atexit = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> WorkerFuture[T]:
        """Calls a function in a worker, with the JAX configuration of this thread.

        The function, its arguments and its result are pickled.

        The future raises the function's exception, or JobError if that cannot be sent;
        WorkerDiedError if the process ended; NotPicklableError if the call cannot be sent.

        Raises:
          RuntimeError: the executor was shut down.
        """
        return self.submit_as(getattr(fn, "__name__", type(fn).__name__), fn, *args, **kwargs)

    def submit_as(
        self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> WorkerFuture[T]:
        """Calls a function as `submit` does; error messages use `name` for it."""
        future: WorkerFuture[T] = WorkerFuture()
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("these ExportWorkers were shut down, and take no further calls")
            self._shared.calls.put(_SubmittedCall(future, name, fn, args, kwargs))
            idle = self._shared.idle.acquire(blocking=False)
            if not idle and len(self._threads) < self._count:
                thread = threading.Thread(target=_run_calls, args=(self._shared,), daemon=True)
                thread.start()
                self._threads.append(thread)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Rejects further calls; the processes end when the submitted calls are done.

        Args:
          wait: whether to wait until the processes have ended.
          cancel_futures: whether to cancel calls that have not begun.
        """
        with self._lock:
            self._is_shut_down = True
            if cancel_futures:
                with contextlib.suppress(queue.Empty):
                    while True:
                        call = self._shared.calls.get_nowait()
                        if call is not None:
                            call.future.cancel()
                            call.future.set_running_or_notify_cancel()
            self._shared.calls.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def kill(self) -> None:
        """Kills all processes immediately; submitted calls fail or are cancelled."""
        self._shared.kill()
        self.shutdown(wait=True, cancel_futures=True)


class RayExecutor(Executor):
    """Calls functions as Ray tasks, for `export_many`.

    Args:
      remote: `ray.remote`, or a version with options, such as `ray.remote(num_cpus=2)`. The bridge
        itself does not import Ray.

    Ray's processes need the bridge, JAX, and the modules that define the functions. Use
    runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}} to keep them off accelerators.
    """

    def __init__(self, remote: Callable[..., Any]) -> None:
        self._remote = remote
        self._lock = threading.Lock()
        self._functions: dict[Any, Any] = {}
        self._futures: set[Future[Any]] = set()
        self._is_shut_down = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Calls a function as a task; Ray pickles it, its arguments and its result.

        Raises:
          RuntimeError: the executor was shut down.
          TypeError: Ray cannot pickle the arguments.
        """
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("this RayExecutor was shut down, and takes no further calls")
            if fn not in self._functions:
                self._functions[fn] = self._remote(fn)
            task = self._functions[fn]
        future = cast("Future[T]", task.remote(*args, **kwargs).future())
        with self._lock:
            self._futures.add(future)
        future.add_done_callback(self._forget)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Rejects further calls; Ray itself keeps running.

        Args:
          wait: whether to wait until the submitted calls are done.
          cancel_futures: whether to cancel futures that are not done; their tasks keep running.
        """
        with self._lock:
            self._is_shut_down = True
            pending = list(self._futures)
        for future in pending:
            if cancel_futures:
                future.cancel()
            if wait and not future.cancelled():
                future.exception()  # waits; the submitter handles the exception

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)


def _count_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _merge_environment(variables: Mapping[str, str]) -> dict[str, str]:
    texts = [*variables, *variables.values()] if isinstance(variables, Mapping) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise ExportError(
            "environment must be a dict of texts, as {'XLA_FLAGS': '--xla_dump_to=/tmp'}. Got: "
            f"{variables!r}."
        )
    devices = getattr(jax.config, "jax_num_cpu_devices", -1)
    device_count = {"JAX_NUM_CPU_DEVICES": str(devices)} if devices > 0 else {}
    return {**os.environ, **device_count, "JAX_PLATFORMS": "cpu", **variables}


def _run_calls(shared: _ExecutorState) -> None:
    """Runs calls in one process, and replaces it if it dies: the target of each thread."""
    process: WorkerProcess | None = None
    try:
        while (call := _wait_for_call(shared)) is not None:
            if call.future.set_running_or_notify_cancel():
                process = _run_call(shared, call, process)
            del call  # frees its arguments while this thread waits for the next call
    finally:
        _close_process(shared, process)


def _wait_for_call(shared: _ExecutorState) -> _SubmittedCall | None:
    """Waits for the next call; None after shutdown."""
    try:
        call = shared.calls.get_nowait()
    except queue.Empty:
        shared.idle.release()
        call = shared.calls.get()
    if call is None:
        shared.calls.put(None)  # for the next thread
    return call


def _run_call(
    shared: _ExecutorState, call: _SubmittedCall, process: WorkerProcess | None
) -> WorkerProcess | None:
    """Runs a call, and returns the process for the next one, or None if it must be replaced."""
    timeout = shared.timeout
    try:
        if process is None:
            process = _start_process(shared, call.name)
        try:
            process.forget_output()
            with use_configuration(call.configuration):
                answer = process.call(call.name, call.function, call.args, call.kwargs, timeout)
        finally:
            call.future.output = process.output()
        if isinstance(answer, Failure):
            error = answer.make_job_error(
                call.name, call.future.output, action=f"The call of {call.name!r}"
            )
            raise error.__cause__ or error
        call.future.set_result(answer.value)
    except BaseException as e:
        call.future.set_exception(e)
    if process is not None and not process.is_alive:
        _close_process(shared, process)
        process = None
    return process


def _start_process(shared: _ExecutorState, name: str) -> WorkerProcess:
    process = WorkerProcess(shared.environment)
    with shared.lock:
        shared.processes.add(process)
        if shared.killed:
            process.kill()
    try:
        ready = process.prepare(name, shared.initializer)
        if isinstance(ready, Failure):
            raise ready.make_job_error(name, process.output(), action="The workers' initializer")
    except BaseException:
        process.kill()
        _close_process(shared, process)
        raise
    return process


def _close_process(shared: _ExecutorState, process: WorkerProcess | None) -> None:
    if process is not None:
        process.close()
        with shared.lock:
            shared.processes.discard(process)

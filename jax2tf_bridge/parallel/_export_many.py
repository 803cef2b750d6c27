"""export_many(): exports many functions at once, in other processes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from pickle import PicklingError

from jax2tf_bridge._utils._progress import progress_bar
from jax2tf_bridge.errors import (
    BridgeError,
    ExportError,
    ExportManyError,
    JobError,
    MissingDependencyError,
    NotPicklableError,
)
from jax2tf_bridge.parallel._executors import ExportWorkers
from jax2tf_bridge.parallel._failures import (
    Failure,
    cannot_be_named,
    cannot_be_sent,
    executor_error,
)
from jax2tf_bridge.parallel._jobs import ExportJob, Jobs, named_jobs
from jax2tf_bridge.parallel._sent_jobs import Answer, Pending, run_job
from jax2tf_bridge.portable._portable_function import PortableFunction


def export_many(
    jobs: Jobs,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    environment: Mapping[str, str] | None = None,
    progress: bool | None = None,
) -> dict[str, PortableFunction]:
    """Exports several functions, signatures, shapes or platforms at once, in other processes.

    JAX's configuration goes along with the jobs, as it is where this is called (x64, matrix
    precision, PRNG). Portable functions come back as the bytes of .jaxfn files.

    Args:
      jobs: a list of ExportJobs, or a mapping of them by name.
      executor: None for processes that are started for this call; ExportWorkers that are kept for
        several; or any executor of concurrent.futures, which carries the jobs by its own means:
        ProcessPoolExecutor, Dask's client.get_executor(), RayExecutor(ray.remote). Its processes
        need the bridge and JAX, and the modules that the functions are from.
      workers: without an executor, how many processes there are at most; by default one a job, up
        to the number of cores.
      environment: without an executor, environment variables of the processes, as in
        ExportWorkers.
      progress: whether to show a progress bar; None for where stderr is a terminal.

    Returns:
      Portable functions by the jobs' names, in the order of the jobs. Types of arguments and
      results are those of this process. VJPs are those that `vjp_order` of the job asked for.

    Raises:
      ExportManyError: some jobs failed. It has what came of the others.
      FunctionError: something is no ExportJob.
      ExportError: two jobs have one name, or the options contradict each other.

    >>> import jax, numpy as np
    >>> x = np.ones((1, 2), np.float32)
    >>> jobs = {
    ...     "one": ExportJob(jax.nn.softmax, [x]),
    ...     "any": ExportJob(jax.nn.softmax, [x], polymorphic_shapes="(b, 2)"),
    ... }
    >>> functions = export_many(jobs, workers=1)
    >>> {name: str(function.in_avals[0]) for name, function in functions.items()}
    {'one': 'float32[1,2]', 'any': 'float32[b,2]'}
    """
    named = named_jobs(jobs)
    if executor is not None and not (workers is None and environment is None):
        raise ExportError(
            "workers and environment cannot be combined with executor: they are for processes that "
            "export_many starts. Pass them to the executor: ExportWorkers(workers, "
            "environment=...)."
        )
    if not named:
        return {}
    with _executor(executor, workers, environment) as chosen:
        results, errors = _outcomes(named, chosen, progress)
    if errors:
        raise ExportManyError.of(results, errors)
    return results


@contextlib.contextmanager
def _executor(
    given: Executor | None, workers: int | None, environment: Mapping[str, str] | None
) -> Iterator[Executor]:
    """Yields the given executor, or own workers, which end with the call."""
    if given is not None:
        yield given
        return
    own = ExportWorkers(workers, environment=environment)
    try:
        yield own
    except BaseException:  # KeyboardInterrupt among them
        own.kill()
        raise
    own.shutdown()


def _outcomes(
    jobs: Mapping[str, ExportJob], executor: Executor, progress: bool | None
) -> tuple[dict[str, PortableFunction], dict[str, BridgeError]]:
    """Runs the jobs; returns portable functions and errors by name, in the order of the jobs."""
    results: dict[str, PortableFunction] = {}
    errors: dict[str, BridgeError] = {}
    pending: dict[Future[Answer], Pending] = {}
    try:
        for name, job in jobs.items():
            try:
                sent = Pending(name, job)
            except Exception as e:  # of the user's objects; the other jobs go on
                errors[name] = Failure.of(e).job_error(name, "", e)
                continue
            try:
                pending[_submitted(executor, sent)] = sent
            except Exception as e:  # Dask and Ray pickle at once
                errors[name] = _failed_executor(sent, executor, e)
        with progress_bar("exporting", len(jobs), "export", show=progress) as advance:
            advance(len(errors))
            for future in as_completed(pending):
                sent = pending[future]
                try:
                    results[sent.name] = _result(sent, future, executor)
                except BridgeError as e:
                    errors[sent.name] = e
                advance(1)
    except BaseException:
        for future in pending:
            future.cancel()
        raise
    return (
        {name: results[name] for name in jobs if name in results},
        {name: errors[name] for name in jobs if name in errors},
    )


def _submitted(executor: Executor, sent: Pending) -> Future[Answer]:
    if isinstance(executor, ExportWorkers):
        return executor.submit_as(sent.name, run_job, sent.sent)
    return executor.submit(run_job, sent.sent)


def _result(sent: Pending, future: Future[Answer], executor: Executor) -> PortableFunction:
    """Returns the portable function of a job that is done.

    Raises:
      BridgeError: it failed.
    """
    error = None if future.cancelled() else future.exception()
    output: str = getattr(future, "output", "")
    # Of a process that died it is part of the message.
    if output.strip() and not isinstance(error, JobError):
        for line in output.rstrip().splitlines():
            print(f"[{sent.name}] {line}", file=sys.stderr)
    if future.cancelled():
        raise JobError(f"The export of {sent.name!r} was cancelled.", job=sent.name)
    if error is not None:
        raise _failed_executor(sent, executor, error, output)
    return sent.exported(future.result(), output)


def _failed_executor(
    sent: Pending, executor: Executor, error: BaseException, output: str = ""
) -> BridgeError:
    """Makes the error for a job that the executor could not run; `run_job` raises nothing."""
    own = isinstance(executor, ExportWorkers)
    if isinstance(error, (NotPicklableError, PicklingError, TypeError, AttributeError, ValueError)):
        function = sent.job.function
        found = cannot_be_sent(sent.name, [function, sent.sent])
        if found is None and isinstance(executor, ProcessPoolExecutor):
            found = cannot_be_named(sent.name, function, sent.sent.job.function)
        if found is not None:
            found.__cause__ = error
            return found
    if own and isinstance(error, (JobError, MissingDependencyError)):
        return error
    if own:  # it was raised while the job was read in the worker
        return Failure.of(error).job_error(sent.name, output, error)
    return executor_error(sent.name, error)

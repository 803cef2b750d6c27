"""Exports many functions in parallel, in other processes."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from pickle import PicklingError

from jax2tf_bridge._utils import ItemsByName, progress_bar
from jax2tf_bridge.colocated import dumps
from jax2tf_bridge.errors import (
    BridgeError,
    ExportError,
    ExportManyError,
    JobError,
    MissingDependencyError,
    NotPicklableError,
    WorkerDiedError,
)
from jax2tf_bridge.parallel._executors import ExportWorkers
from jax2tf_bridge.parallel._failures import Failure
from jax2tf_bridge.parallel._jobs import Answer, ExportJob, Jobs, PendingJob, name_jobs, run_job
from jax2tf_bridge.portable import PortableFunction


def export_many(
    jobs: Jobs,
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    environment: Mapping[str, str] | None = None,
    progress: bool | None = None,
) -> dict[str, PortableFunction]:
    """Exports several functions, signatures, shapes or platforms in parallel, in other processes.

    The jobs run with the JAX configuration of the caller (x64, matrix precision, PRNG). Portable
    functions return as the bytes of .jaxfn files.

    Args:
      jobs: a list of ExportJobs, or a mapping of them by name.
      executor: None starts processes for this call. Pass ExportWorkers to reuse processes, or any
        executor of concurrent.futures: ProcessPoolExecutor, Dask's client.get_executor(),
        RayExecutor(ray.remote). Its processes need the bridge, JAX, and the modules that define
        the functions.
      workers: the maximum number of processes without an executor; by default one per job, up to
        the number of cores.
      environment: environment variables of the processes without an executor, as in
        ExportWorkers.
      progress: whether to show a progress bar; None shows it if stderr is a terminal.

    Returns:
      Portable functions by job name, in the order of the jobs. The pytree types of their arguments
      and results are the types of this process. They have as many VJPs as the job's `vjp_order`.

    Raises:
      ExportManyError: some jobs failed. The error has the results of the others.
      FunctionError: `jobs` has something other than an ExportJob.
      ExportError: two jobs have the same name, the options contradict each other, or `executor`
        is not an Executor.

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
    jobs_by_name = name_jobs(jobs)
    if executor is not None and not (workers is None and environment is None):
        raise ExportError(
            "workers and environment cannot be combined with executor: they are for processes that "
            "export_many starts. Pass them to the executor: ExportWorkers(workers, "
            "environment=...)."
        )
    if not (executor is None or isinstance(executor, Executor)):
        raise ExportError(
            f"executor must be a concurrent.futures.Executor. Got: {executor!r:.200}. Pass "
            "ExportWorkers(), or the client.get_executor() of Dask."
        )
    if not jobs_by_name:
        return {}
    with _open_executor(executor, workers, environment) as chosen_executor:
        results, errors = _run_jobs(jobs_by_name, chosen_executor, progress)
    if errors:
        raise ExportManyError.of(results, errors)
    return ItemsByName("job", results)


@contextlib.contextmanager
def _open_executor(
    executor: Executor | None, workers: int | None, environment: Mapping[str, str] | None
) -> Iterator[Executor]:
    """Yields the user's executor, or new workers that end with the call."""
    if executor is not None:
        yield executor
        return
    workers_executor = ExportWorkers(workers, environment=environment)
    try:
        yield workers_executor
    except BaseException:  # includes KeyboardInterrupt
        workers_executor.kill()
        raise
    workers_executor.shutdown()


def _run_jobs(
    jobs: Mapping[str, ExportJob], executor: Executor, progress: bool | None
) -> tuple[dict[str, PortableFunction], dict[str, BridgeError]]:
    """Runs the jobs; returns portable functions and errors by name, in the order of the jobs."""
    results: dict[str, PortableFunction] = {}
    errors: dict[str, BridgeError] = {}
    pending: dict[Future[Answer], PendingJob] = {}
    try:
        for name, job in jobs.items():
            try:
                pending_job = PendingJob(name, job)
            except Exception as e:  # the user's objects may raise anything; other jobs go on
                errors[name] = Failure.of(e).make_job_error(name, "", e)
                continue
            try:
                pending[_submit(executor, pending_job)] = pending_job
            except Exception as e:  # Dask and Ray pickle when a job is submitted
                errors[name] = _explain_error(pending_job, executor, e)
        with progress_bar("exporting", len(jobs), "export", show=progress) as advance:
            advance(len(errors))
            for future in as_completed(pending):
                pending_job = pending[future]
                try:
                    results[pending_job.name] = _get_result(pending_job, future, executor)
                except BridgeError as e:
                    errors[pending_job.name] = e
                advance(1)
    except BaseException:
        for future in pending:
            future.cancel()
        raise
    return (
        {name: results[name] for name in jobs if name in results},
        {name: errors[name] for name in jobs if name in errors},
    )


def _submit(executor: Executor, pending_job: PendingJob) -> Future[Answer]:
    if isinstance(executor, ExportWorkers):
        return executor.submit_as(pending_job.name, run_job, pending_job.message)
    return executor.submit(run_job, pending_job.message)


def _get_result(
    pending_job: PendingJob, future: Future[Answer], executor: Executor
) -> PortableFunction:
    """Returns the portable function of a finished job.

    Raises:
      BridgeError: the job failed.
    """
    error = None if future.cancelled() else future.exception()
    output: str = getattr(future, "output", "")
    # The text of a JobError contains the output already.
    if output.strip() and not isinstance(error, JobError):
        for line in output.rstrip().splitlines():
            print(f"[{pending_job.name}] {line}", file=sys.stderr)
    if future.cancelled():
        raise JobError(f"The export of {pending_job.name!r} was cancelled.", job=pending_job.name)
    if error is not None:
        raise _explain_error(pending_job, executor, error, output)
    return pending_job.read_function(future.result(), output)


def _explain_error(
    pending_job: PendingJob, executor: Executor, error: BaseException, output: str = ""
) -> BridgeError:
    """Makes the error for a job that the executor could not run; `run_job` never raises."""
    explanation: BridgeError | None = None
    if isinstance(error, (PicklingError, TypeError, AttributeError, ValueError)):
        explanation = _find_pickle_error(pending_job)
        if explanation is None and isinstance(executor, ProcessPoolExecutor):
            explanation = _find_plain_pickle_error(pending_job)
    if explanation is None and isinstance(executor, ExportWorkers):
        if isinstance(error, (JobError, MissingDependencyError)):
            return error
        # Unpickling the job in the worker raised it.
        return Failure.of(error).make_job_error(pending_job.name, output, error)
    if explanation is None:
        explanation = _make_executor_error(pending_job.name, error)
    explanation.__cause__ = error
    return explanation


def _find_pickle_error(pending_job: PendingJob) -> NotPicklableError | None:
    """Makes the error for a job that cannot be pickled; None if it can be."""
    for part in (pending_job.job.function, pending_job.message):  # the function fails most often
        try:
            dumps(part)
        except NotPicklableError as e:
            return NotPicklableError(f"The export of {pending_job.name!r}: {e}", culprit=e.culprit)
    return None


def _find_plain_pickle_error(pending_job: PendingJob) -> NotPicklableError | None:
    """Makes the error for a job whose function plain pickle cannot send; None if it can."""
    try:
        pickle.dumps(pending_job.message.job.function)
    except Exception as e:  # __reduce__ may raise anything
        function = pending_job.job.function
        culprit = str(getattr(function, "__qualname__", type(function).__qualname__))
        return NotPicklableError(
            f"The export of {pending_job.name!r} needs {culprit}, which the executor cannot send: "
            f"{e}. It uses pickle, which finds only functions at the top of modules. Define the "
            "function there, or use the bridge's own workers (executor=None), which accept any "
            "function.",
            culprit=culprit,
        )
    return None


def _make_executor_error(name: str, error: BaseException) -> JobError:
    text = f"The executor failed with the export of {name!r}: {type(error).__name__}: {error}"
    if not isinstance(error, BrokenExecutor):
        return JobError(text, job=name)
    return WorkerDiedError(
        f"{text} It does not say which job ended its process, and accepts no further jobs. The "
        "bridge's own workers (executor=None) name the job, and accept others.",
        job=name,
    )

"""Defines ExportJob, and names jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from jax2tf_bridge.errors import ExportError, FunctionError
from jax2tf_bridge.from_jax.arguments import JaxCallable
from jax2tf_bridge.portable import PolyConstraints
from jax2tf_bridge.targets import Target


@dataclass(frozen=True)
class ExportJob:
    """One export: a function, its arguments' shapes, and the options of `export`.

    Attributes:
      function: the JAX function, jitted or not. It is sent to another process, together with the
        arrays that it captures.
      args: examples of its positional arguments, arrays or jax.ShapeDtypeStructs. Only the shapes
        and dtypes of arrays are sent.
      kwargs: examples of its keyword arguments.
      name: the key of the result; by default the function's name, plus a number if several jobs
        would have the same name.
      polymorphic_shapes, polymorphic_constraints, platforms, disabled_checks, target,
        runtime_checks: as in `export`.
      vjp_order: the number of gradient orders to export. The result cannot be differentiated
        further, because the JAX function stays in the other process.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _: KW_ONLY
    name: str | None = None
    polymorphic_shapes: Any = None
    polymorphic_constraints: PolyConstraints = ()
    platforms: Sequence[str] | None = None
    disabled_checks: Sequence[Any] = ()
    target: Target | None = None
    runtime_checks: Literal["drop"] | None = None
    vjp_order: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.args, (tuple, list)):
            raise FunctionError(
                "ExportJob takes the arguments of its function as a list, args=[x]. Got: a "
                f"{type(self.args).__name__}."
            )


Jobs: TypeAlias = Sequence[ExportJob] | Mapping[str, ExportJob]
"""A list of jobs, or a mapping of jobs by name."""


def name_jobs(jobs: Jobs) -> dict[str, ExportJob]:
    """Gives each job a unique name, and returns the jobs by name, in order.

    Raises:
      FunctionError: `jobs` has something other than an ExportJob.
      ExportError: the user gave two jobs the same name.
    """
    if isinstance(jobs, ExportJob):
        raise FunctionError("export_many takes a list of jobs. Write [job], or use export().")
    if isinstance(jobs, Mapping):
        return {
            name: replace(_check_job(job, f"The job {name!r}"), name=name)
            for name, job in jobs.items()
        }
    listed = [_check_job(job, f"Job {number}") for number, job in enumerate(jobs)]
    user_names = [job.name for job in listed if job.name is not None]
    duplicates = sorted({name for name in user_names if user_names.count(name) > 1})
    if duplicates:
        raise ExportError(
            f"Several jobs have the name {', '.join(map(repr, duplicates))}. Give each job its own "
            "name: results are returned by name."
        )
    taken = set(user_names)
    named: dict[str, ExportJob] = {}
    for job in listed:
        name = job.name
        if name is None:
            name = _make_unique(_get_function_name(job), taken)
            taken.add(name)
        named[name] = replace(job, name=name)
    return named


def _check_job(job: object, which: str) -> ExportJob:
    if isinstance(job, ExportJob):
        return job
    hint = (
        f" Write ExportJob({getattr(job, '__name__', 'f')}, args=[...])." if callable(job) else ""
    )
    raise FunctionError(f"{which} must be an ExportJob. Got: a {type(job).__name__}.{hint}")


def _get_function_name(job: ExportJob) -> str:
    try:
        return JaxCallable.of(job.function, caller="ExportJob").name
    except FunctionError:
        return "job"  # the export reports the problem


def _make_unique(name: str, taken: set[str]) -> str:
    """Returns `name`, or `name_2`, `name_3`, ...: the first that is not taken."""
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique

"""ExportJob, and the names of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Literal, TypeAlias

from jax2tf_bridge.errors import ExportError, FunctionError
from jax2tf_bridge.from_jax.arguments._callables import JaxCallable
from jax2tf_bridge.portable._target import Target


@dataclass(frozen=True)
class ExportJob:
    """One export: a function, its arguments' shapes, and the options of `export`.

    Attributes:
      function: the JAX function, jitted or not. It is sent to another process: arrays that it
        captures are sent with it.
      args: examples of its positional arguments, arrays or jax.ShapeDtypeStructs. Of arrays only
        shapes and dtypes are sent.
      kwargs: the same of its keyword arguments.
      name: key of the result; by default the function's name, with a number behind it where
        several jobs would have the same.
      polymorphic_shapes, polymorphic_constraints, platforms, disabled_checks, target,
        runtime_checks: as in `export`.
      vjp_order: how many orders of gradients are exported with it. No more can be made of the
        result afterwards, since the function stays where it was exported.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = field(default=(), repr=False)
    kwargs: Mapping[str, Any] = field(default_factory=dict, repr=False)
    _: KW_ONLY
    name: str | None = None
    polymorphic_shapes: Any = None
    polymorphic_constraints: Sequence[str] | Literal["infer"] = ()
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
"""Jobs, by their names or with names of their own."""


def named_jobs(jobs: Jobs) -> dict[str, ExportJob]:
    """Gives each job a name of its own, and returns the jobs by name, in order.

    Raises:
      FunctionError: one is no ExportJob.
      ExportError: two were given one name.
    """
    if isinstance(jobs, ExportJob):
        raise FunctionError("export_many takes a list of jobs. Write [job], or use export().")
    if isinstance(jobs, Mapping):
        return {
            name: replace(_as_job(job, f"The job {name!r}"), name=name)
            for name, job in jobs.items()
        }
    listed = [_as_job(job, f"Job {number}") for number, job in enumerate(jobs)]
    given = [job.name for job in listed if job.name is not None]
    twice = sorted({name for name in given if given.count(name) > 1})
    if twice:
        raise ExportError(
            f"Several jobs have the name {', '.join(map(repr, twice))}. Give each job its own "
            "name: results are returned by name."
        )
    taken = set(given)
    named: dict[str, ExportJob] = {}
    for job in listed:
        name = job.name
        if name is None:
            name = _unique(_function_name(job), taken)
            taken.add(name)
        named[name] = replace(job, name=name)
    return named


def _as_job(job: object, which: str) -> ExportJob:
    if isinstance(job, ExportJob):
        return job
    hint = (
        f" Write ExportJob({getattr(job, '__name__', 'f')}, args=[...])." if callable(job) else ""
    )
    raise FunctionError(f"{which} must be an ExportJob. Got: a {type(job).__name__}.{hint}")


def _function_name(job: ExportJob) -> str:
    try:
        return JaxCallable.of(job.function, caller="ExportJob").name
    except FunctionError:
        return "job"  # what is wrong with it is said where it is exported


def _unique(name: str, taken: set[str]) -> str:
    """Returns `name`, or with the first number behind it that makes it a new one, from 2 on."""
    number, unique = 1, name
    while unique in taken:
        number += 1
        unique = f"{name}_{number}"
    return unique

"""Arguments without their data, and structures whose types are those of this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jax2tf_bridge.errors import StructureError
from jax2tf_bridge.from_jax.arguments._callables import JaxCallable
from jax2tf_bridge.from_jax.trees._tree_specs import tree_spec
from jax2tf_bridge.parallel._jobs import ExportJob
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._tree_spec import TreeSpec


def without_data(job: ExportJob) -> ExportJob:
    """The job with shapes and dtypes in the place of arrays; static arguments keep their values."""
    function = JaxCallable.of(job.function, caller="ExportJob")
    static = function.static_argnames
    args = tuple(
        arg if function.is_static(i) else _without_data(arg) for i, arg in enumerate(job.args)
    )
    kwargs = {k: arg if k in static else _without_data(arg) for k, arg in job.kwargs.items()}
    return replace(job, args=args, kwargs=kwargs)


def _without_data(argument: Any) -> Any:
    return jax.tree_util.tree_map(_shape_of, argument)


def _shape_of(leaf: Any) -> Any:
    if isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    return leaf


def argument_structure(job: ExportJob) -> TreeSpec:
    """The structure of (args, kwargs), static ones left out: of its record's in_tree."""
    function = JaxCallable.of(job.function, caller="ExportJob")
    args = tuple(arg for i, arg in enumerate(job.args) if not function.is_static(i))
    kwargs = {k: arg for k, arg in job.kwargs.items() if k not in function.static_argnames}
    return tree_spec((args, kwargs))


def check_arrived(job: ExportJob, sent: TreeSpec) -> None:
    """Raises unless the arguments have the structure here that they were sent with.

    Raises:
      StructureError: JAX does not know a type here, or knows it by another registration.
    """
    if argument_structure(job) == sent:
        return
    names = ", ".join(dict.fromkeys(node.name for node in typed_nodes(sent)))
    raise StructureError(
        f"The arguments have another structure where they are exported: not all of {names} are "
        "pytrees there. Classes of the script itself are sent without their registration with "
        "JAX. Define and register them in a module that the function's module imports, or "
        "register them in the workers: ExportWorkers(initializer=register)."
    )


def typed_nodes(spec: TreeSpec) -> Iterator[TreeSpec]:
    """The nodes that stand for types of the user's."""
    if spec.kind in ("namedtuple", "custom"):
        yield spec
    for child in spec.children:
        yield from typed_nodes(child)


def skeleton(record: PortableFunction) -> Any:
    """The result of a function with numbers in the place of arrays; None if all is plain.

    Any process that knows its types can see from it how they are rebuilt.
    """
    if not any(typed_nodes(record.out_tree)):
        return None
    return record.out_tree.unflatten(iter(range(len(record.out_avals))))


def with_types_of(read: TreeSpec, own: TreeSpec) -> TreeSpec:
    """The structure that was read, with the types of an equal one of this process."""
    same = (read.kind, read.name, read.keys) == (own.kind, own.name, own.keys)
    if not same or len(read.children) != len(own.children):
        return read
    children = tuple(map(with_types_of, read.children, own.children))
    return replace(read, children=children, codec=own.codec or read.codec)

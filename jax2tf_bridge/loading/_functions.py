"""Functions of a loaded SavedModel, as JAX calls, differentiates and jits them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge._utils._suggestions import did_you_mean
from jax2tf_bridge.errors import (
    ArgumentsError,
    DTypeError,
    GradientError,
    ShapeError,
    StructureError,
    bullet_list,
)
from jax2tf_bridge.from_jax import to_exported
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    GradientOnDemand,
    PortableFunction,
)
from jax2tf_bridge.portable._tree_spec import LEAF, TreeSpec, call_without, flatten_call
from shape_poly import Dim, shape_text, solve_dimensions

Flat: TypeAlias = Callable[..., Sequence[Any]]
"""From flat arrays to flat arrays."""


class LoadedFunction:
    """A function of a SavedModel, with the arguments of the JAX function that it was.

    It can be called, within jax.jit too, differentiated as often as gradients were saved, and
    exported again. Not with jax.vmap, for which JAX's exported functions have no rule.

    Attributes:
      name: of the signature.
      record: what it runs.
      takes_params: whether its first argument is the weights.
      masks: the paths of the arguments that it is called without, as the SavedModel is: there
        buckets fill them. Here nothing is padded, and they are 1 everywhere.
    """

    def __init__(
        self,
        name: str,
        record: PortableFunction,
        *,
        takes_params: bool,
        masks: Sequence[str] = (),
    ) -> None:
        self.name, self.record, self.takes_params = name, record, takes_params
        self.masks = tuple(masks)

    @functools.cached_property
    def exported(self) -> Any:
        """JAX's own exported function, over the flat arguments and results."""
        return to_exported(_flat_record(self.record))

    @functools.cached_property
    def _jitted(self) -> Flat:
        return jax.jit(self.exported.call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results on the arguments, of the structure that the function was exported with.

        Raises:
          StructureError, ShapeError, DTypeError: the arguments do not fit.
          GradientError: while it is differentiated more often than gradients were saved.
        """
        record = self.record
        tree, names = call_without(record.in_tree, record.argument_names, self.masks)
        leaves = self.with_masks(flatten_call(tree, names, args, kwargs))
        return record.out_tree.unflatten(iter(self.flat(leaves)))

    def with_masks(self, leaves: Sequence[Any]) -> list[Any]:
        """All flat arguments, of those without the masks.

        Raises:
          ShapeError: a mask's size does not follow from them.
        """
        if not self.masks:
            return list(leaves)
        by_path = {port.path: port.aval for port in self.record.inputs}
        given = [aval for path, aval in by_path.items() if path not in self.masks]
        sizes = _Sizes(self.record.name, given, leaves)
        rest = iter(leaves)
        return [
            jnp.ones(sizes.of(path, aval), aval.dtype) if path in self.masks else next(rest)
            for path, aval in by_path.items()
        ]

    def flat(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """The flat results on the flat arguments."""
        check_leaves(self.record, leaves)
        results: Sequence[Any] = self._jitted(*leaves)
        return results

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {signature_text(self.record, self.masks)}>"


class _Sizes:
    """Sizes of what is not given, from those of what is; they may be symbolic in jax.export."""

    def __init__(self, name: str, avals: Sequence[Aval], leaves: Sequence[Any]) -> None:
        self._name = name
        self._plain: dict[str, Any] = {}
        known: list[list[int | None]] = []
        shapes = [np.shape(leaf) for leaf in leaves]
        for aval, shape in zip(avals, shapes, strict=True):
            fits = len(aval.shape) == len(shape)  # what does not is refused afterwards
            known.append(
                [size if fits and isinstance(size, int) else None for size in shape]
                if fits
                else [None] * len(aval.shape)
            )
            if fits:
                names = map(str, aval.shape)
                self._plain |= {n: size for n, size in zip(names, shape, strict=True)}
        self._solved = solve_dimensions([aval.shape for aval in avals], known)

    def of(self, path: str, aval: Aval) -> list[Any]:
        """The shape of an argument.

        Raises:
          ShapeError: it does not follow.
        """
        return [self._size(path, dimension) for dimension in aval.shape]

    def _size(self, path: str, dimension: Dim) -> Any:
        if isinstance(dimension, int):
            return dimension
        if str(dimension) in self._plain:
            return self._plain[str(dimension)]
        if not dimension.variables() <= self._solved.keys():
            raise ShapeError(
                f"{self._name}: the size {dimension} of its mask {path} does not follow from the "
                "shapes of the arguments: they do not fit the function."
            )
        return dimension.evaluate(self._solved)


class LoadedSignature:
    """A signature of a SavedModel: called with its inputs by name, it gives its outputs by name.

    It uses the weights that were loaded with it.

    Attributes:
      name: its name.
      inputs: by name, as "float32[b,28]".
      outputs: by name.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        call: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> None:
        self.name, self.inputs, self.outputs = name, dict(inputs), dict(outputs)
        self._call = call

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """The outputs on the inputs.

        Raises:
          StructureError: an input is missing, or there is none of that name.
          ShapeError, DTypeError: they do not fit.
        """
        problems = [f"the input {name} is missing" for name in self.inputs if name not in inputs]
        problems += [
            f"there is no input {name}{did_you_mean(name, self.inputs)}"
            for name in inputs
            if name not in self.inputs
        ]
        if problems:
            raise StructureError(
                f"The inputs are not those of the signature {self.name}{self._text()}:"
                f"{bullet_list(problems)}"
            )
        return dict(self._call(inputs))

    def _text(self) -> str:
        inputs = ", ".join(f"{name}: {aval}" for name, aval in self.inputs.items())
        outputs = ", ".join(f"{name}: {aval}" for name, aval in self.outputs.items())
        return f"({inputs}) -> ({outputs})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{self._text()}>"


def signature_text(record: PortableFunction, left_out: Collection[str] = ()) -> str:
    """The arguments, but for those at some paths, and the results of a record in a line."""
    arguments = ", ".join(str(port) for port in record.inputs if port.path not in left_out)
    return f"({arguments}) -> ({', '.join(map(str, record.out_avals))})"


def check_leaves(record: PortableFunction, leaves: Sequence[Any]) -> None:
    """Raises unless arrays fit the arguments, as far as that is known without solving for sizes.

    Raises:
      ShapeError, DTypeError, ArgumentsError: they do not; each difference is listed.
    """
    shapes, dtypes = [], []
    for port, leaf in zip(record.inputs, leaves, strict=True):
        path, aval = port.path, port.aval
        shape, dtype = np.shape(leaf), _dtype_name(leaf)
        fits = len(shape) == len(aval.shape) and all(
            not isinstance(d, int) or d == size for d, size in zip(aval.shape, shape, strict=True)
        )
        if not fits:
            expected = shape_text(aval.shape)
            shapes.append(f"{path}: expected shape {expected}, got {shape_text(shape)}")
        if dtype != aval.dtype:
            dtypes.append(f"{path}: expected {aval.dtype}, got {dtype}")
    refuse_misfits(record.name, shapes, dtypes)


def refuse_misfits(name: str, shapes: Sequence[str], dtypes: Sequence[str]) -> None:
    """Raises if there are differences in shapes or dtypes, with all of them.

    Raises:
      ShapeError, DTypeError, ArgumentsError: there are.
    """
    if not shapes and not dtypes:
        return
    kind = ArgumentsError if shapes and dtypes else ShapeError if shapes else DTypeError
    hint = ""
    if any("64" in line for line in dtypes) and not jax.config.read("jax_enable_x64"):
        hint = "\nJAX has no values of 64 bits unless jax.config.update('jax_enable_x64', True)."
    lines = bullet_list([*shapes, *dtypes])
    raise kind(f"The arguments of {name} do not fit:{lines}{hint}")


def _dtype_name(leaf: Any) -> str:
    """The dtype that a value has for JAX."""
    if isinstance(leaf, jax.Array):
        return str(leaf.dtype)
    return str(jax.eval_shape(lambda x: x, leaf).dtype)


def _flat_record(record: PortableFunction) -> PortableFunction:
    """The record over flat arguments and results: no type of a pytree node has to be known here.

    Where its stored gradients end, the next one says so.
    """
    arguments = TreeSpec("tuple", children=(LEAF,) * len(record.in_avals))
    return replace(
        record,
        in_tree=TreeSpec("tuple", children=(arguments, TreeSpec("dict"))),
        out_tree=TreeSpec("tuple", children=(LEAF,) * len(record.out_avals)),
        argument_names=tuple(f"x{i}" for i in range(len(record.in_avals))),
        gradient=_with_end(record, record.name, 0),
    )


def _with_end(record: PortableFunction, name: str, order: int) -> Gradient:
    if record.has_vjp:

        def make() -> PortableFunction:
            vjp = record.vjp()
            return replace(vjp, gradient=_with_end(vjp, name, order + 1))

        return GradientOnDemand(make)
    reason = record.gradient.missing_because
    if order:
        reason = (
            f"the SavedModel has its gradients up to order {order}; for more, write it by "
            f"jax2tf_bridge.save(..., vjp_order={order + 1})"
        )

    def refuse() -> PortableFunction:
        raise GradientError(f"{name} has no {'further ' if order else ''}gradient: {reason}.")

    return GradientOnDemand(refuse)


def path_avals(record: PortableFunction) -> tuple[dict[str, Aval], dict[str, Aval]]:
    """The arguments and results of a record by their paths."""
    ins = {port.path: port.aval for port in record.inputs}
    outs = {port.path: port.aval for port in record.outputs}
    return ins, outs

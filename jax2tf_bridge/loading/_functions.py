"""Classes of loaded models, whose functions JAX can call, jit and differentiate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jax2tf_bridge._utils import ItemsByName, did_you_mean, unknown_name_text
from jax2tf_bridge.errors import (
    GradientError,
    ShapeError,
    StructureError,
    format_bullets,
    make_mismatch_error,
)
from jax2tf_bridge.from_jax import to_exported
from jax2tf_bridge.portable import (
    Aval,
    CallStructure,
    Gradient,
    GradientOnDemand,
    PortableFunction,
    flat_call,
    flat_names,
    flat_tuple,
)
from jax2tf_bridge.storage import AnyPath
from shape_poly import Dim, shape_text, solve_dimensions

Flat: TypeAlias = Callable[..., Sequence[Any]]
"""A function that takes flat arrays and returns a flat list of arrays."""


class LoadedFunction:
    """A function of a SavedModel, with the arguments of the original JAX function.

    You can call it (also within jax.jit), export it again, and differentiate it as often as
    gradients were saved. It does not work with jax.vmap, because JAX's exported functions have no
    batching rule.

    Attributes:
      name: the name of the signature.
      portable: the portable function that runs.
      takes_params: whether the first argument is the weights.
      masks: the paths of the mask arguments, which callers leave out. A SavedModel fills them when
        it pads to a bucket; a loaded function does not pad, so its masks are 1 everywhere.
    """

    def __init__(
        self,
        name: str,
        portable: PortableFunction,
        *,
        takes_params: bool,
        masks: Sequence[str] = (),
    ) -> None:
        self.name, self.portable, self.takes_params = name, portable, takes_params
        self.masks = tuple(masks)

    @functools.cached_property
    def exported(self) -> Any:
        """A jax.export.Exported over the flat arguments and results."""
        return to_exported(_flatten_arguments(self.portable))

    @functools.cached_property
    def _jitted(self) -> Flat:
        return jax.jit(self.exported.call)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the function; the results have the structure of the original function's.

        Raises:
          StructureError, ShapeError, DTypeError: the arguments do not fit.
          GradientError: the function is differentiated more often than gradients were saved.
        """
        leaves = self.insert_masks(self._arguments.flatten(args, kwargs))
        return self.portable.out_tree.unflatten(iter(self.call_on_leaves(leaves)))

    @functools.cached_property
    def _arguments(self) -> CallStructure:
        arguments = CallStructure.of(self.portable.in_tree, self.portable.argument_names)
        return arguments.without(self.masks)

    def insert_masks(self, leaves: Sequence[Any]) -> list[Any]:
        """Inserts masks of ones into the flat arguments.

        Raises:
          ShapeError: the size of a mask does not follow from the arguments.
        """
        if not self.masks:
            return list(leaves)
        shapes = self._compute_mask_shapes(leaves)
        remaining = iter(leaves)
        return [
            jnp.ones(shapes[path], aval.dtype) if path in shapes else next(remaining)
            for path, aval in self._iter_inputs()
        ]

    def _iter_inputs(self) -> Iterator[tuple[str, Aval]]:
        return ((port.path, port.aval) for port in self.portable.inputs)

    def _compute_mask_shapes(self, leaves: Sequence[Any]) -> dict[str, list[Any]]:
        """Computes the masks' shapes from the other shapes; they are symbolic while JAX exports."""
        avals = [aval for path, aval in self._iter_inputs() if path not in self.masks]
        sizes: dict[str, Any] = {}
        known_sizes: list[list[int | None]] = []
        for aval, leaf in zip(avals, leaves, strict=True):
            shape = np.shape(leaf)
            if len(aval.shape) != len(shape):  # check_arrays reports this later
                known_sizes.append([None] * len(aval.shape))
                continue
            known_sizes.append([size if isinstance(size, int) else None for size in shape])
            sizes |= dict(zip(map(str, aval.shape), shape, strict=True))
        variables = solve_dimensions([aval.shape for aval in avals], known_sizes)

        def compute_size(mask: str, dimension: Dim) -> Any:
            if isinstance(dimension, int):
                return dimension
            if str(dimension) in sizes:
                return sizes[str(dimension)]
            if not dimension.variables() <= variables.keys():
                raise ShapeError(
                    f"{self.portable.name}: the size {dimension} of its mask {mask} does not "
                    "follow from the shapes of the arguments: they do not fit the function. Its "
                    "repr() lists the shapes that it takes."
                )
            return dimension.evaluate(variables)

        return {
            path: [compute_size(path, dimension) for dimension in aval.shape]
            for path, aval in self._iter_inputs()
            if path in self.masks
        }

    def call_on_leaves(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Runs the function on flat arguments, and returns flat results."""
        expected = [(path, aval.shape, aval.dtype) for path, aval in self._iter_inputs()]
        check_arrays(self.portable.name, expected, leaves)
        results: Sequence[Any] = self._jitted(*leaves)
        return results

    def __repr__(self) -> str:
        inputs = ", ".join(str(p) for p in self.portable.inputs if p.path not in self.masks)
        outputs = ", ".join(map(str, self.portable.out_avals))
        return f"<{type(self).__name__} {self.name}: ({inputs}) -> ({outputs})>"


class LoadedSignature:
    """A signature of a SavedModel, which takes inputs and returns outputs by name.

    It uses the weights that were loaded with it.

    Attributes:
      name: the name of the signature.
      inputs: the type of each input by name, such as "float32[b,28]".
      outputs: the type of each output by name.
    """

    def __init__(
        self,
        name: str,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        call: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    ) -> None:
        self.name = name
        self.inputs = ItemsByName("input", inputs)
        self.outputs = ItemsByName("output", outputs)
        self._call = call

    def __call__(self, /, *args: Any, **inputs: Any) -> dict[str, Any]:
        """Runs the signature on inputs by name.

        Raises:
          StructureError: an input is missing or unknown, or passed by position.
          ShapeError, DTypeError: the inputs do not fit.
        """
        problems = list_input_problems(self.inputs, args, inputs)
        if problems:
            raise StructureError(
                f"The inputs are not those of the signature {self.name}{self._format_types()}:"
                f"{format_bullets(problems)}"
            )
        return dict(self._call(inputs))

    def _format_types(self) -> str:
        inputs = ", ".join(f"{name}: {aval}" for name, aval in self.inputs.items())
        outputs = ", ".join(f"{name}: {aval}" for name, aval in self.outputs.items())
        return f"({inputs}) -> ({outputs})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}{self._format_types()}>"


def list_input_problems(
    names: Collection[str], args: Sequence[Any], inputs: Collection[str]
) -> list[str]:
    """Lists a problem for each missing and each unknown input, and for positional arguments."""
    if args:
        return [f"pass the inputs by name ({', '.join(names)}), not by position"]
    problems = [f"the input {name} is missing" for name in names if name not in inputs]
    return problems + [
        f"there is no input {name}{did_you_mean(name, names)}"
        for name in inputs
        if name not in names
    ]


def check_arrays(
    name: str, expected: Iterable[tuple[str, Sequence[object], str]], arrays: Sequence[Any]
) -> None:
    """Compares arrays with the arguments of a function, without solving for symbolic sizes.

    Args:
      name: the name of the function.
      expected: path, shape and dtype of each argument; only sizes that are ints are compared.
      arrays: one for each argument.

    Raises:
      ShapeError, DTypeError, ArgumentsError: the arrays do not fit; each difference is listed.
    """
    shapes, dtypes = [], []
    for (path, sizes, dtype), array in zip(expected, arrays, strict=True):
        shape, actual_dtype = np.shape(array), _get_jax_dtype(array)
        fits = len(shape) == len(sizes) and all(
            not isinstance(d, int) or d == size for d, size in zip(sizes, shape, strict=True)
        )
        if not fits:
            shapes.append(f"{path}: expected shape {shape_text(sizes)}, got {shape_text(shape)}")
        if dtype != actual_dtype:
            dtypes.append(f"{path}: expected {dtype}, got {actual_dtype}")
    if not shapes and not dtypes:
        return
    hint = ""
    if any("64" in line for line in dtypes) and not jax.config.read("jax_enable_x64"):
        hint = "JAX has no values of 64 bits unless jax.config.update('jax_enable_x64', True)."
    raise make_mismatch_error(f"The arguments of {name} do not fit", shapes, dtypes, hint)


def _get_jax_dtype(leaf: Any) -> str:
    if isinstance(leaf, jax.Array):
        return str(leaf.dtype)
    try:
        return str(jax.eval_shape(lambda x: x, leaf).dtype)
    except (TypeError, OverflowError, AttributeError):  # a text, an integer too large, a list
        return f"{leaf!r:.80} of type {type(leaf).__name__}"


def _flatten_arguments(portable: PortableFunction) -> PortableFunction:
    """Flattens arguments and results, so that no pytree node type needs to be registered.

    The gradient after the last stored one raises a GradientError.
    """
    return replace(
        portable,
        in_tree=flat_call(len(portable.in_avals)),
        out_tree=flat_tuple(len(portable.out_avals)),
        argument_names=flat_names(len(portable.in_avals)),
        gradient=_make_gradient(portable, portable.name, 0),
    )


def _make_gradient(portable: PortableFunction, name: str, order: int) -> Gradient:
    if portable.has_vjp:

        def make() -> PortableFunction:
            vjp = portable.vjp()
            return replace(vjp, gradient=_make_gradient(vjp, name, order + 1))

        return GradientOnDemand(make)
    reason = portable.gradient.missing_because
    if order:
        reason = (
            f"the SavedModel has its gradients up to order {order}; for more, write it by "
            f"jax2tf_bridge.save(..., vjp_order={order + 1})"
        )

    def refuse() -> PortableFunction:
        raise GradientError(f"{name} has no {'further ' if order else ''}gradient: {reason}.")

    return GradientOnDemand(refuse)


class LoadedModel:
    """A SavedModel as JAX functions and arrays; `load` returns it.

    Every signature is a method: `model.serving_default(x)` calls the function with the weights of
    the SavedModel. `model.functions["serving_default"](params, x)` takes the weights as an
    argument, so that you can differentiate with respect to them.
    `model.signatures["serving_default"](x=x)` takes inputs and returns outputs by name, as
    TensorFlow does.

    Attributes:
      path: the SavedModel's folder.
      functions: the functions by signature name, with the arguments of the JAX function.
      signatures: the signatures by name.
      params: the weights, as the pytree that was saved, or None without weights. Node types that
        are not registered (register_pytree_node_serialization) become dicts or tuples.
      constants: the arrays that the functions captured, by name.
      problems: the reason for each signature that JAX alone cannot run.
    """

    def __init__(
        self,
        path: AnyPath,
        functions: Mapping[str, Any],
        signatures: Mapping[str, LoadedSignature],
        params: Any,
        constants: Mapping[str, Any],
        *,
        problems: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.path = path
        self.functions = MappingProxyType(ItemsByName("signature", functions))
        self.signatures = MappingProxyType(ItemsByName("signature", signatures))
        self.params = params
        self.constants = MappingProxyType(ItemsByName("captured array", constants))
        self.problems = MappingProxyType(dict(problems))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = self.__dict__.get("functions", {}).get(name)
        if function is None:
            problem = self.__dict__.get("problems", {}).get(name)
            if problem is not None:
                raise AttributeError(f"the signature {name} cannot run in JAX alone: {problem}")
            text = unknown_name_text("signature", name, self.__dict__.get("functions", {}))
            raise AttributeError(f"the SavedModel has {text}")

        def call(*args: Any, **kwargs: Any) -> Any:
            params = (self.params,) if function.takes_params else ()
            return function(*params, *args, **kwargs)

        call.__name__ = call.__qualname__ = name
        call.__doc__ = f"The signature {name} with the weights of the model: {function!r}."
        return call

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.functions})

    def __repr__(self) -> str:
        lines = [f"LoadedModel {self.path}"]
        lines += [f"  {signature!r}" for signature in self.signatures.values()]
        lines += [f"  not in JAX: {name}: {why}" for name, why in self.problems.items()]
        if self.constants:
            lines.append(f"  captured arrays: {len(self.constants)}")
        return "\n".join(lines)

"""Runs and traces TensorFlow functions of flat tensors for JAX's rules."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from jax2tf_bridge.calling_tf import _jax_compat, _tf_compat
from jax2tf_bridge.calling_tf._failures import convert_call_errors
from jax2tf_bridge.calling_tf._values import (
    DeclaredResults,
    flatten_results,
    make_tensor_spec,
    uses_64_bits,
)
from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import Aval

_CONTROL_FLOW = frozenset(
    {"If", "StatelessIf", "Case", "StatelessCase", "While", "StatelessWhile", "Switch", "Merge"}
)

T = TypeVar("T")

Results = tuple[list[tf.Tensor], Any]
"""Flat results, and their pytree structure."""


@dataclass(frozen=True)
class FunctionTrace:
    """A function as a TensorFlow graph, traced for arguments of these shapes.

    Attributes:
      specs: the types of the arguments.
      concrete: the concrete function.
      results: the types of the results; sizes may be unknown.
      structure: the pytree of the results.
    """

    specs: tuple[tf.TensorSpec, ...]
    concrete: Any
    results: tuple[tf.TensorSpec, ...]
    structure: Any

    def __call__(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Returns the flat results."""
        results = self.concrete(*tensors)
        return [] if results is None else list(results)

    def list_stateful_operations(self) -> tuple[str, ...]:
        """Lists the types of operations with side effects or random results."""
        return _tf_compat.list_stateful_operation_types(self.concrete.graph)

    def has_control_flow(self) -> bool:
        """Returns whether the graph has branches or loops."""
        return not _CONTROL_FLOW.isdisjoint(_tf_compat.list_operation_types(self.concrete.graph))


@dataclass(frozen=True)
class CallOptions:
    """Options of call_tf.

    Attributes:
      has_side_effects: whether JAX must neither drop nor repeat a call.
      ordered: whether calls keep their order.
      declared: the declared results, if any.
      graph: whether the function is embedded as a graph, and not compiled.
    """

    has_side_effects: bool = True
    ordered: bool = False
    declared: DeclaredResults | None = None
    graph: bool = False


@contextmanager
def suspend_tracing() -> Iterator[None]:
    """Suspends all tracing of JAX and TensorFlow in this thread for the body."""
    with _tf_compat.suspend_graphs(), _jax_compat.suspend_transformations():
        yield


class FlatFunction(abc.ABC):
    """A TensorFlow function of flat tensors; thread-safe.

    It is traced once per combination of argument shapes. If two threads trace it at the same time,
    both use the trace that finishes first.
    """

    def __init__(self, name: str, options: CallOptions) -> None:
        self.name, self.options = name, options
        self._cache: dict[Any, Any] = {}

    def __repr__(self) -> str:
        return self.name

    @abc.abstractmethod
    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        """Runs the function operation by operation in eager mode; adds it to a graph otherwise."""

    def find_known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]] | None:
        """Returns the shapes of the results if they follow from the arguments' shapes, or None.

        Args:
          avals: the avals of the arguments.
          shapes: the shapes of the arguments, with JAX's symbolic dimensions.
        """
        return None

    def run_eagerly(self, arrays: Sequence[Any]) -> tuple[list[jax.Array], Any]:
        """Runs the function on arrays, operation by operation.

        Raises:
          CallTfError: the function raised.
        """
        with suspend_tracing(), convert_call_errors(self.name):
            results, structure = self.run([tf.convert_to_tensor(np.asarray(a)) for a in arrays])
        arrays_out = [jnp.asarray(tensor.numpy()) for tensor in results]
        jax_arrays = [array for array in arrays if isinstance(array, jax.Array)]
        devices = {device for array in jax_arrays for device in array.devices()}
        if len(devices) == 1:
            arrays_out = [jax.device_put(array, *devices) for array in arrays_out]
        return arrays_out, structure

    def get_trace(self, avals: Sequence[Aval]) -> FunctionTrace:
        """Traces the function for arguments of these shapes and dtypes; cached.

        Raises:
          CallTfError: the function raised.
          ShapeError: a size is symbolic.
        """
        self._check_sizes(avals)
        return self.get_or_make(("trace", *avals, uses_64_bits()), lambda: self._trace(avals))

    def get_or_make(self, key: Any, make: Callable[[], T]) -> T:
        """Returns the entry for `key`: a trace, a compiled module or graph, or a derived function.

        A missing entry is made without a lock, because `make` may run user code.
        """
        if key not in self._cache:
            self._cache.setdefault(key, make())
        entry: T = self._cache[key]
        return entry

    def _trace(self, avals: Sequence[Aval]) -> FunctionTrace:
        specs = tuple(make_tensor_spec(aval) for aval in avals)
        structures: list[Any] = []

        def body(*tensors: tf.Tensor) -> list[tf.Tensor]:
            results, structure = self.run(tensors)
            structures.append(structure)
            return results

        with suspend_tracing(), convert_call_errors(self.name):
            concrete = tf.function(body, autograph=False).get_concrete_function(*specs)
        # Read now, because differentiating the graph later adds outputs to it.
        results = tuple(tf.TensorSpec(t.shape, t.dtype) for t in concrete.outputs)
        return FunctionTrace(specs, concrete, results, structures[-1])

    def _check_sizes(self, avals: Sequence[Aval]) -> None:
        if self.options.graph:
            return
        for i, aval in enumerate(avals):
            if not all(isinstance(size, int) for size in aval.shape):
                raise ShapeError(
                    f"The TensorFlow function {self.name} is called with an argument of symbolic "
                    f"shape: {aval}, argument {i}. TensorFlow compiles for known sizes only. "
                    "Embed its graph, which takes any size: call_tf(..., call_tf_graph=True). "
                    "Or export the function for known shapes (without "
                    "polymorphic_shapes), once for each size."
                )


class UserFunction(FlatFunction):
    """A user's function, for arguments of one pytree structure."""

    def __init__(
        self, f: Callable[..., Any], in_tree: Any, name: str, options: CallOptions
    ) -> None:
        """`in_tree` is the structure of (args, kwargs)."""
        super().__init__(name, options)
        self._f, self._in_tree = f, in_tree

    def find_known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]] | None:
        """Returns the declared shapes."""
        declared = self.options.declared
        return None if declared is None else list(declared.shapes)

    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        """Calls the user's function; in a graph, with AutoGraph as in tf.function."""
        args, kwargs = self._in_tree.unflatten(tensors)
        f = self._f if tf.executing_eagerly() else self._autograph_call
        return flatten_results(f(*args, **kwargs), self.name, self.options.declared)

    @functools.cached_property
    def _autograph_call(self) -> Callable[..., Any]:
        f = self._f

        # AutoGraph converts the user's function when `call` calls it, and warns if it has no
        # source. `call` itself has no annotations, because AutoGraph cannot read them here.
        def call(*args, **kwargs):  # type: ignore[no-untyped-def]
            return f(*args, **kwargs)

        rewritten: Callable[..., Any] = tf.autograph.to_graph(call)
        return rewritten

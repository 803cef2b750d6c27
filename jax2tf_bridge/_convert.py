"""convert(): the two halves of the bridge, back to back in one process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax2tf_bridge._errors import DTypeError, ExportError, MissingDependencyError
from jax2tf_bridge._portable import PortableFunction
from jax2tf_bridge._target import Target
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._avals import is_key
from jax2tf_bridge.from_jax._callables import JaxCallable
from jax2tf_bridge.from_jax._export import export_options, export_specs
from jax2tf_bridge.from_jax._specs import OpenSpec, Specs, jax_dtype, symbolic_specs
from jax2tf_bridge.to_tf import _tf_compat
from jax2tf_bridge.to_tf._function import call_flat
from jax2tf_bridge.to_tf._op import check_record

try:
    import jax
    import numpy as np
    import tensorflow as tf
except ModuleNotFoundError as e:  # pragma: no cover - the halves above say it first
    raise MissingDependencyError(str(e.name), "all", "convert") from e

_DEPRECATED: Any = object()


def convert(
    f: Callable[..., Any],
    *,
    polymorphic_shapes: Any = None,
    polymorphic_constraints: Sequence[str] = (),
    with_gradient: bool = True,
    enable_xla: Any = _DEPRECATED,
    native_serialization: Any = _DEPRECATED,
    native_serialization_platforms: Sequence[str] | None = None,
    native_serialization_disabled_checks: Sequence[Any] = (),
    target: Target | None = None,
) -> Callable[..., Any]:
    """Makes a TF function of a JAX function; a drop-in for jax2tf.convert of JAX 0.12.

    Args:
      f: the function, jitted or not. Arguments and results are pytrees of arrays.
      polymorphic_shapes: which dimensions stay open, as in `export`: None (none), a string as
        "(b, 28)" for every argument, or one entry an argument.
      polymorphic_constraints: what holds for the dimension variables, as "b >= 2".
      with_gradient: whether the VJP of `f` becomes the TF gradient, to any order.
      enable_xla, native_serialization: deprecated and without effect, as in jax2tf.
      native_serialization_platforms: as `platforms` of `export`: by default every platform that
        the function can be lowered for.
      native_serialization_disabled_checks: of DisabledSafetyCheck.
      target: what the consumer can run; by default `Target.widest()`.

    Returns:
      A function over tensors, tf.Variables, arrays and scalars. 64-bit values are taken as
      JAX takes them: as 32 bits unless jax_enable_x64 is set. It is traced once for each
      signature. Saved with tf.saved_model.save as any TF function; pass
      tf.saved_model.SaveOptions(experimental_custom_gradients=True) to save its gradient.

    Raises:
      FunctionError: `f` is not callable.
      TargetError: no such platform.

    >>> import jax.numpy as jnp, tensorflow as tf
    >>> f = convert(lambda x: jnp.sum(x * x, axis=1), polymorphic_shapes="(b, 2)")
    >>> f(tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy().tolist()
    [5.0, 25.0]
    """
    for name, value in (("enable_xla", enable_xla), ("native_serialization", native_serialization)):
        if value is not _DEPRECATED:
            warnings.warn(
                f"The argument {name} of convert has no effect and will be removed: the module is "
                "always serialized natively.",
                DeprecationWarning,
                stacklevel=2,
            )
    function = JaxCallable.of(f, caller="convert")
    options = export_options(
        native_serialization_platforms,
        polymorphic_constraints,
        native_serialization_disabled_checks,
        target,
        argument="native_serialization_platforms",
    )
    records = _Records(lambda specs: export_specs(function, specs, options))

    def converted(*args: Any, **kwargs: Any) -> Any:
        if _jax_compat.inside_transformation():
            raise ExportError(
                f"convert({function.name}) was called inside a JAX transformation (jit, grad, "
                "vmap). It makes a TensorFlow function: call it outside all of them."
            )
        call = _Arguments.of(function, args, kwargs)
        record = records.get(
            call.key(),
            lambda: symbolic_specs(
                function,
                call.spec_args,
                call.spec_kwargs,
                polymorphic_shapes,
                options.constraints,
            ),
        )
        results = call_flat(record, call.tensors(record), with_gradient)
        return record.out_tree.unflatten(iter(results))

    converted.__name__ = converted.__qualname__ = function.name
    if function.signature is not None:
        converted.__signature__ = function.signature  # type: ignore[attr-defined]
    return converted


@dataclass
class _Records:
    """The records of one converted function, one for each signature, made once each."""

    make: Callable[[Specs], PortableFunction]
    _by_call: dict[Hashable, PortableFunction] = field(default_factory=dict)
    _by_specs: dict[Hashable, PortableFunction] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def get(self, key: Hashable, specs: Callable[[], Specs]) -> PortableFunction:
        """The record for a call; calls that differ only in open dimensions share one."""
        key = (key, _jax_compat.configuration())
        record = self._by_call.get(key)
        if record is not None:
            return record
        with self._lock:
            symbolic = specs()
            specs_key = (symbolic.key(), key[1])
            if specs_key not in self._by_specs:
                made = self.make(symbolic)
                check_record(made)
                self._by_specs[specs_key] = made
            self._by_call[key] = self._by_specs[specs_key]
            return self._by_call[key]


@dataclass(frozen=True)
class _Arguments:
    """The arguments of one call, apart: arrays as leaves, and what they mean to JAX."""

    leaves: tuple[Any, ...]
    tree: Any
    spec_args: tuple[Any, ...]
    spec_kwargs: dict[str, Any]
    static: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(function: JaxCallable, args: Sequence[Any], kwargs: dict[str, Any]) -> _Arguments:
        """Takes the arguments apart.

        Raises:
          DTypeError: one is no array, or JAX has no such dtype.
        """
        names = function.argument_names(len(args))
        static = [(names[i], a) for i, a in enumerate(args) if function.is_static(i)]
        static += [(k, v) for k, v in kwargs.items() if k in function.static_argnames]
        plain = jax.tree_util.tree_map(
            _tf_compat.unwrapped,
            (
                [None if function.is_static(i) else a for i, a in enumerate(args)],
                {k: v for k, v in kwargs.items() if k not in function.static_argnames},
            ),
            is_leaf=_tf_compat.is_wrapper,
        )
        keyed, tree = jax.tree_util.tree_flatten_with_path(plain)
        leaves = tuple(leaf for _, leaf in keyed)
        paths = [_path(path, names) for path, _ in keyed]
        spec_args, spec_kwargs = tree.unflatten(
            _spec(leaf, path) for leaf, path in zip(leaves, paths, strict=True)
        )
        by_name = dict(static)
        return _Arguments(
            leaves,
            tree,
            tuple(by_name.get(n, a) if function.is_static(i) else a
                  for i, (n, a) in enumerate(zip(names, spec_args, strict=True))),
            {**spec_kwargs, **{k: v for k, v in static if k in function.static_argnames}},
            tuple(static),
        )

    def key(self) -> Hashable:
        """Equal for calls with equal structure, shapes, dtypes and static values."""
        leaves, tree = jax.tree_util.tree_flatten((self.spec_args, self.spec_kwargs))
        return tree, self.static, tuple(
            (leaf.shape, str(leaf.dtype)) if isinstance(leaf, OpenSpec) else leaf
            for leaf in leaves
        )

    def tensors(self, record: PortableFunction) -> list[tf.Tensor]:
        """The leaves as tensors of the record's dtypes; 64 bits become 32 where JAX says so."""
        return [
            _to_tensor(leaf, tf.as_dtype(aval.op_dtype))
            for leaf, aval in zip(self.leaves, record.in_avals, strict=True)
        ]


def _path(path: Sequence[Any], names: Sequence[str]) -> str:
    side, argument, *rest = path
    name = names[argument.idx] if side.idx == 0 else str(argument.key)
    return name + jax.tree_util.keystr(tuple(rest))


def _spec(leaf: Any, path: str) -> OpenSpec:
    if isinstance(leaf, jax.Array) and is_key(leaf.dtype):
        return OpenSpec(leaf.shape, leaf.dtype)
    if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable):
        if leaf.shape.rank is None:
            raise DTypeError(
                f"The argument {path} has an unknown rank. Give it one with tf.ensure_shape, or "
                "by the tf.function's input_signature."
            )
        dtype = leaf.dtype.as_numpy_dtype
        return OpenSpec(tuple(leaf.shape.as_list()), jax_dtype(dtype, path))
    if isinstance(leaf, (bool, int, float, complex, np.ndarray, np.generic, jax.Array)):
        aval = jax.typeof(leaf) if not isinstance(leaf, (np.ndarray, np.generic)) else leaf
        return OpenSpec(tuple(aval.shape), jax_dtype(aval.dtype, path))
    if hasattr(leaf, "__tf_tensor__"):
        return _spec(tf.convert_to_tensor(leaf), path)
    raise DTypeError(
        f"The argument {path} of a converted function should be a NumPy array, scalar, "
        f"tf.Variable, or tf.Tensor. Got: {leaf!r} of type {type(leaf).__name__}"
    )


def _to_tensor(leaf: Any, dtype: tf.DType) -> tf.Tensor:
    if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable) or hasattr(leaf, "__tf_tensor__"):
        tensor = tf.convert_to_tensor(leaf)
        return tensor if tensor.dtype == dtype else tf.cast(tensor, dtype)
    if isinstance(leaf, jax.Array) and is_key(leaf.dtype):
        leaf = jax.random.key_data(leaf)
    return tf.convert_to_tensor(np.asarray(leaf).astype(dtype.as_numpy_dtype))

"""One signature of a SavedModel: from named tensors to named tensors, over shared weights."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge._utils._array_texts import array_type_text
from jax2tf_bridge.errors import SavingError
from jax2tf_bridge.portable._dtypes import KEYS
from jax2tf_bridge.portable._portable_function import Aval, PortableFunction
from jax2tf_bridge.portable._tree_spec import TreeSpec, call_without, flatten_call
from jax2tf_bridge.saved_model._signature import Signature
from jax2tf_bridge.saving._names import renamed, valid_names
from jax2tf_bridge.saving._signature_inputs import (
    crossing,
    examples_of,
    named_inputs,
)
from jax2tf_bridge.saving.buckets._buckets import Bucketing
from jax2tf_bridge.saving.buckets._padding import NamedCall
from jax2tf_bridge.saving.buckets._piecewise import PieceGradients
from jax2tf_bridge.to_tf._constants import Constants
from jax2tf_bridge.to_tf._dtypes import fits_dtype, op_dtype
from jax2tf_bridge.to_tf._gradient import StoredOrders, call_flat
from shape_poly import is_symbolic_dim

_MOST_TRIED = 5


@dataclass(frozen=True)
class Endpoint:
    """A function with its weights, ready to be called and saved.

    Attributes:
      name: of the signature.
      signature: what the user asked for.
      record: of the function.
      weights: for its first argument; empty if it takes none.
      inputs, outputs: by name, as they cross to TensorFlow; without weights and masks.
      paths: for each input the path to it.
      orders: its gradients.
      call: the function over named tensors; it reads what it holds where that is not among them.
      held: what it holds, the weights and constants, as tensors with names of their own.
      masks: the paths to the arguments that the buckets fill.
      bucketing: the sizes that `call` runs at.
      notes: what to know of them, for people.
      piece_gradients: the gradients of what runs in pieces.
    """

    name: str
    signature: Signature
    record: PortableFunction
    weights: Sequence[tf.Variable]
    inputs: Mapping[str, Aval]
    outputs: Mapping[str, Aval]
    paths: Sequence[str]
    orders: StoredOrders | None
    call: NamedCall
    held: Callable[[], dict[str, tf.Tensor]]
    masks: Sequence[str] = ()
    bucketing: Bucketing | None = None
    notes: tuple[str, ...] = ()
    piece_gradients: PieceGradients | None = None

    @staticmethod
    def of(
        name: str,
        signature: Signature,
        weights: Sequence[tf.Variable],
        constants: Constants,
        vjp_order: int | None,
    ) -> Endpoint:
        """Of a signature whose function is a record.

        Raises:
          SavingError: names clash, or are not there.
        """
        record: PortableFunction = signature.function
        first = len(weights)
        paths = record.in_paths()[first:]
        avals = record.in_avals[first:]
        inputs = named_inputs(name, signature, paths, avals)
        out_paths = tuple(record.out_tree.leaf_paths())
        out_names = renamed(
            valid_names(out_paths, "output"), out_paths, signature.output_names, name, "output"
        )
        outputs = dict(zip(out_names, map(crossing, record.out_avals), strict=True))
        # Without orders, TensorFlow's PreventGradient says why there is no gradient.
        orders = None if vjp_order is None else StoredOrders(record, vjp_order, constants)
        flat = _flat(record, weights, constants, orders)

        def held() -> dict[str, tf.Tensor]:
            # No input has a slash in its name.
            known = [] if orders is None else orders.known().values()
            read = {f"weights/{i}": v.read_value() for i, v in enumerate(weights)}
            return read | {f"constants/{i}": tensor for i, tensor in enumerate(known)}

        def call(tensors: Mapping[str, Any]) -> dict[str, Any]:
            given = [
                _key_of(tensors[name], aval) if signature.seed == "scalar" else tensors[name]
                for name, aval in zip(inputs, record.in_avals[first:], strict=True)
            ]
            own = [tensor for key, tensor in tensors.items() if "/" in key] or held().values()
            return dict(zip(outputs, flat(*own, *given), strict=True))

        return Endpoint(
            name, signature, record, weights, inputs, outputs, paths, orders, call, held
        )

    def specs(self) -> dict[str, tf.TensorSpec]:
        """What its tf.function takes, by name."""
        return {name: spec(name, aval) for name, aval in self.inputs.items()}

    def taken(self) -> dict[str, tf.TensorSpec]:
        """What the saved signature takes, by name: what its preprocess does, if it has one."""
        if self.signature.preprocess is None:
            return self.specs()
        given = self.signature.inputs.items()
        return {name: tf.TensorSpec(s.shape, s.dtype, name) for name, s in given}

    def method(self) -> tuple[Any, list[tuple[Any, Any]]]:
        """The function as a method with the arguments of the JAX function.

        Returns:
          A tf.function, and each (args, kwargs) of specs to trace it with.
        """
        tree, names = self.arguments()
        out_tree = neutral(self.record.out_tree)
        signature = _python_signature(tree, names, set(self._defaults_by_path()))

        def method(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._with_defaults(names, args, kwargs)
            leaves = flatten_call(tree, names, args, kwargs)
            results = self.call(dict(zip(self.inputs, leaves, strict=True)))
            return out_tree.unflatten(iter(results[name] for name in self.outputs))

        method.__name__ = method.__qualname__ = self.record.name
        method.__signature__ = signature  # type: ignore[attr-defined]
        specs = tree.unflatten(iter(self.specs().values()))
        return tf.function(method, autograph=False), self._calls(names, *specs)

    def _calls(self, names: Sequence[str], args: Any, kwargs: Any) -> list[tuple[Any, Any]]:
        """The calls to trace: with everything, and without what has a default."""
        optional = [n for n in self._defaults_by_path() if n in names or n in kwargs]
        return [
            (
                tuple(None if n in left_out else a for n, a in zip(names, args, strict=True)),
                {k: None if k in left_out else v for k, v in kwargs.items()},
            )
            for left_out in some_of(optional)
        ]

    def _defaults_by_path(self) -> dict[str, Any]:
        paths = dict(zip(self.inputs, self.paths, strict=True))
        return {paths[name]: value for name, value in self.defaults().items()}

    def _with_defaults(self, names: Sequence[str], args: Any, kwargs: Any) -> tuple[Any, Any]:
        optional = self._defaults_by_path()
        filled = tuple(
            optional[n] if a is None and n in optional else a
            for n, a in zip(names, args, strict=False)
        )
        return (*filled, *args[len(names) :]), {
            k: optional[k] if v is None and k in optional else v for k, v in kwargs.items()
        }

    def defaults(self) -> dict[str, tf.Tensor]:
        """The defaults of inputs, as tensors.

        Raises:
          SavingError: a default does not fit its input.
        """
        given = self.signature.defaults.items()
        return {name: self.fitting("default of", name, value) for name, value in given}

    def example(self) -> Mapping[str, Any]:
        """The user's example of a signature without preprocess, which has at most one.

        Values are cast as arguments are: lists take the dtype of their input, and 64 bits become 32
        where it has 32.

        Raises:
          SavingError: it is no mapping, or a list that is no array of the input's dtype and shape.
        """
        examples = examples_of(self.name, self.signature)
        example = examples[0] if examples else {}
        return {name: self._example_value(name, value) for name, value in example.items()}

    def _example_value(self, name: str, value: Any) -> Any:
        aval = self.inputs.get(name)
        if aval is None:  # which is told where the example is used
            return value
        if not hasattr(value, "dtype"):
            return self.fitting("example for", name, value).numpy()
        if fits_dtype(value, aval.op_dtype):
            _refuse_overflow(self._place("example for", name), value, aval.op_dtype)
            return np.asarray(value).astype(tf.as_dtype(aval.op_dtype).as_numpy_dtype)
        return value

    def fitting(self, what: str, name: str, value: Any) -> tf.Tensor:
        """A value for an input as a tensor; `what` it is, for messages.

        Raises:
          SavingError: it has another dtype or shape, or integers that the dtype does not hold.
        """
        expected = self.taken()[name]
        place = self._place(what, name)
        try:
            tensor = tf.constant(value, expected.dtype)
        except (TypeError, ValueError) as e:
            raise SavingError(
                f"{place} does not fit it: expected {expected.dtype.name}, got {_shown(value)}. {e}"
            ) from e
        _refuse_overflow(place, value, expected.dtype.name)
        if not expected.shape.is_compatible_with(tensor.shape):
            raise SavingError(f"{place} has the shape {tensor.shape}, expected {expected.shape}.")
        return tensor

    def _place(self, what: str, name: str) -> str:
        return f"The {what} the input {name} of the signature {self.name}"

    def arguments(self) -> tuple[TreeSpec, tuple[str, ...]]:
        """The structure of (args, kwargs) without weights and masks, and the arguments' names."""
        record, first = self.record, 1 if self.takes_params else 0
        whole, names = call_without(record.in_tree, record.argument_names, self.masks)
        args, kwargs = whole.children
        tree = replace(args, children=tuple(map(neutral, args.children[first:])))
        options = replace(kwargs, children=tuple(map(neutral, kwargs.children)))
        return replace(whole, children=(tree, options)), names[first:]

    @property
    def is_processed(self) -> bool:
        """Whether the user's own functions stand around it."""
        return self.signature.preprocess is not None or self.signature.postprocess is not None

    @property
    def order(self) -> int:
        """How many orders of gradients it has."""
        return 0 if self.orders is None else len(self.orders.functions)

    def gradient_functions(self) -> list[Any]:
        """Its gradients as traced functions, for the saved object; of what was traced of it."""
        functions: list[Any] = []
        for gradients in (self.orders, self.piece_gradients):
            if gradients is not None:
                gradients.trace()
                functions += gradients.functions
        return functions

    def prevented(self, order: int) -> str | None:
        """Why the gradient of this order, or the function (0), has none; None if it has."""
        if self.orders is None:
            return self.record.gradient_problem()
        return self.orders.prevented(order)

    @property
    def takes_params(self) -> bool:
        """Whether its first argument are the weights."""
        return self.signature.takes_params is True


def _python_signature(
    tree: TreeSpec, names: Sequence[str], optional: Collection[str]
) -> inspect.Signature:
    """The arguments as Python says them, so that they can be given by name, too."""
    args, kwargs = tree.children
    if not all(name.isidentifier() and not iskeyword(name) for name in names):
        names = [f"arg_{i}" for i in range(len(args.children))]
    needed = inspect.Parameter.empty
    positional = []
    default: Any = needed
    for name in names:
        # After one that can be left out all can, for Python.
        default = None if name in optional or default is None else needed
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        positional.append(inspect.Parameter(name, kind, default=default))
    keyword = [
        inspect.Parameter(
            str(key),
            inspect.Parameter.KEYWORD_ONLY,
            default=None if str(key) in optional else needed,
        )
        for key in kwargs.keys
    ]
    return inspect.Signature([*positional, *keyword])


def _shown(value: Any) -> str:
    """A value for a message; of an array its dtype and shape."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return array_type_text(value.dtype, value.shape)
    return repr(value)


def _refuse_overflow(place: str, value: Any, dtype: str) -> None:
    """Raises for integers beyond their dtype, which NumPy and TensorFlow would wrap around."""
    if not dtype.startswith(("int", "uint")):
        return
    array, limits = np.asarray(value), np.iinfo(dtype)
    if array.dtype.kind not in "iu" or not array.size:
        return
    for extreme in (int(array.min()), int(array.max())):
        if not limits.min <= extreme <= limits.max:
            raise SavingError(
                f"{place} holds {extreme}, and {dtype} is from {limits.min} to {limits.max}. Give "
                "a number in this range, or export the function for a wider dtype."
            )


def spec(name: str, aval: Aval) -> tf.TensorSpec:
    """What a tf.function takes for an input."""
    shape = [None if is_symbolic_dim(d) else d for d in aval.shape]
    return tf.TensorSpec(shape, op_dtype(aval, f"The input {name}"), name)


def neutral(tree: TreeSpec) -> TreeSpec:
    """The structure in containers that a SavedModel can hold: custom nodes as dicts and tuples."""
    children = tuple(map(neutral, tree.children))
    if tree.kind == "dict" and not all(isinstance(key, str) for key in tree.keys):
        return TreeSpec("tuple", children=children)
    if tree.kind in ("custom", "namedtuple"):
        kind = "dict" if tree.keys and all(isinstance(k, str) for k in tree.keys) else "tuple"
        keys = tree.keys if kind == "dict" else ()
        return TreeSpec("dict" if keys else "tuple", keys=keys, children=children)
    return replace(tree, children=children)


def saved_orders(record: PortableFunction, asked: int | None) -> int | None:
    """How many orders of gradients are saved; None for a function that has no gradient.

    By default those that the record holds, and at least one.
    """
    if asked == 0:
        return 0
    if record.gradient_problem() is not None:
        return None
    if asked is not None:
        return asked
    order, vjp = 1, record.vjp().lazy_vjp.made
    while vjp is not None:
        order, vjp = order + 1, vjp.lazy_vjp.made
    return order


def _flat(
    record: PortableFunction,
    weights: Sequence[tf.Variable],
    constants: Constants,
    orders: StoredOrders | None,
) -> Callable[..., Sequence[tf.Tensor]]:
    """The record over weights, constants and its other flat arguments: one function for all."""
    first = len(weights)
    avals = record.in_avals[first:]
    lifted = {} if orders is None else orders.constants
    signature = [
        *(tf.TensorSpec(variable.shape, variable.dtype) for variable in weights),
        *(spec(f"constant_{i}", aval) for i, aval in enumerate(lifted.values())),
        *(spec(f"input_{i}", crossing(aval)) for i, aval in enumerate(avals)),
    ]
    last = first + len(lifted)

    def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
        known = dict(zip(lifted, tensors[first:last], strict=True))
        args = [*tensors[:first], *tensors[last:]]
        return call_flat(record, args, True, constants, orders, known)

    flat.__name__ = flat.__qualname__ = record.name
    function: Callable[..., Sequence[tf.Tensor]] = tf.function(
        flat, input_signature=signature, autograph=False
    )
    return function


def some_of(optional: Sequence[str]) -> list[frozenset[str]]:
    """What of the inputs with defaults a call may leave out: any; of many, none or all."""
    if len(optional) > _MOST_TRIED:
        return [frozenset(), frozenset(optional)]
    counts = range(len(optional) + 1)
    return [frozenset(some) for n in counts for some in itertools.combinations(optional, n)]


def _key_of(seed: tf.Tensor, aval: Aval) -> tf.Tensor:
    """The words of a key from a seed, as jax.random.key makes them."""
    if aval.dtype not in KEYS:
        return seed
    return tf.stack([tf.zeros_like(seed), seed] * (KEYS[aval.dtype].words // 2), axis=-1)

"""Signatures as functions from named tensors to named tensors, over shared weights."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from keyword import iskeyword
from typing import Any, cast

import numpy as np
import tensorflow as tf

from jax2tf_bridge._dtypes import KEYS, find_dtype
from jax2tf_bridge._utils import array_type_text
from jax2tf_bridge.errors import BridgeError, SavingError
from jax2tf_bridge.portable import (
    Aval,
    CallStructure,
    PortableFunction,
    TreeSpec,
    get_stored_functions,
    is_accepted_as,
)
from jax2tf_bridge.saving._variables import convert_stored
from jax2tf_bridge.saving.buckets import Bucketing, Inputs, NamedCall, PieceGradients
from jax2tf_bridge.saving.signatures._updates import Results, WeightLock, assign_all
from jax2tf_bridge.signatures import (
    NamedPort,
    Signature,
    SignatureInputs,
    as_op_aval,
    keys_as_words,
    list_examples,
    name_ports,
)
from jax2tf_bridge.to_tensorflow import Constants, StoredGradients, TracedOnce, call_flat, op_dtype
from shape_poly import is_symbolic_dim


class WeightedFunction:
    """Function of named inputs that holds weights and constants.

    Attributes:
      portable: the portable function.
      weights: the weights for its first argument; empty if it takes none.
      inputs: the inputs without weights, with the masks.
      outputs: the outputs.
      updates: the new values of weights among the results, with the variables to assign them to.
      updated_paths: maps the path of each new value in the results to the path of its weight.
      lock: the lock of the weights.
      orders: the gradients; None for a function without a gradient.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        weights: Sequence[tf.Variable],
        constants: Constants,
        vjp_order: int | None,
        lock: WeightLock,
    ) -> None:
        """Names the inputs and outputs of a signature whose function is a portable function.

        Raises:
          SavingError: names clash or do not exist.
          StructureError, ShapeError, DTypeError: new weights do not fit the weights.
        """
        portable: PortableFunction = signature.function
        self.portable, self.weights, self.lock = portable, weights, lock
        first = len(weights)
        self._avals = portable.in_avals[first:]
        self._dtypes = [op_dtype(aval, "a weight") for aval in portable.in_avals[:first]]
        self._has_seeds = signature.seed == "scalar"
        paths = portable.in_paths()[first:]
        self.inputs = SignatureInputs.of(name, signature, paths, self._avals).ports
        results = Results.of(name, portable, updates_params=signature.updates_params)
        paths, avals = tuple(results.outputs.leaf_paths()), portable.out_avals
        ports = name_ports("output", name, signature.output_names, paths, avals[: len(paths)])
        self.out_tree = results.outputs
        self.outputs = tuple(replace(port, path=results.place + port.path) for port in ports)
        self.updated_paths = results.updates
        updates = zip(results.updates.items(), results.positions, avals[len(paths) :], strict=True)
        self.updates = {
            NamedPort(f"new {weight_path}", path, as_op_aval(aval)): weights[i]
            for (path, weight_path), i, aval in updates
        }
        # Without orders, TensorFlow's PreventGradient says why there is no gradient.
        self.orders = None if vjp_order is None else StoredGradients(portable, vjp_order, constants)
        self._flat = _make_flat_function(portable, weights, constants, self.orders)

    @property
    def results(self) -> tuple[NamedPort, ...]:
        """The outputs and the new values of weights."""
        return (*self.outputs, *self.updates)

    def read_held(self) -> list[tf.Tensor]:
        """Reads the weights and the lifted constants."""
        constants = [] if self.orders is None else self.orders.lifted_constants().values()
        return [*self._read_weights(), *constants]

    def _read_weights(self) -> list[tf.Tensor]:
        def read() -> list[tf.Tensor]:
            return [
                convert_stored(variable.read_value(), dtype)
                for variable, dtype in zip(self.weights, self._dtypes, strict=True)
            ]

        return cast("list[tf.Tensor]", self.lock.access(read)) if self.weights else []

    def call(self, inputs: Inputs) -> dict[str, Any]:
        """Calls the function on inputs of the sizes that it runs at. Assigns nothing."""
        results = self._flat(*inputs.held, *self._arguments(inputs.named))
        return {port.name: r for port, r in zip(self.results, results, strict=True)}

    def assign(self, results: Mapping[str, Any]) -> dict[str, tf.Tensor]:
        """Assigns the new weights after all results are computed, and returns the outputs."""

        def assign() -> dict[str, tf.Tensor]:
            pairs = [(variable, results[port.name]) for port, variable in self.updates.items()]
            return assign_all(
                pairs, lambda: {p.name: tf.identity(results[p.name]) for p in self.outputs}
            )

        with tf.control_dependencies(list(results.values())):
            return cast("dict[str, tf.Tensor]", self.lock.access(assign))

    @property
    def can_pull(self) -> bool:
        """True if `pull` works; otherwise TensorFlow has to differentiate `call`."""
        return self.orders is not None and bool(self.orders.functions)

    def pull(self, inputs: Inputs, cotangents: Mapping[str, Any]) -> Inputs:
        """Returns the cotangents of the inputs, without running the function."""
        assert self.orders is not None
        first = len(self.weights)
        weights, constants = inputs.held[:first], inputs.held[first:]
        pulled = self.orders.pull_back(
            [*weights, *self._arguments(inputs.named)],
            [cotangents[port.name] for port in self.results],
            dict(zip(self.orders.constants, constants, strict=True)),
        )
        named = {p.name: x for p, x in zip(self.inputs, pulled[first:], strict=True)}
        return Inputs(named, [*pulled[:first], *(None for _ in constants)])

    @property
    def order(self) -> int:
        """Number of orders of gradients."""
        return 0 if self.orders is None else self.orders.order

    def gradient_problem(self, order: int) -> str | None:
        """Returns why the derivative of this order has no gradient, or None if it has one.

        This concerns sizes that run in pieces, where each order needs a function.
        """
        if self.orders is None:
            return self.portable.gradient_problem()
        return self.orders.end_problem(order)

    def _arguments(self, named: Mapping[str, Any]) -> list[Any]:
        tensors = [named[port.name] for port in self.inputs]
        return list(map(_seed_to_key, tensors, self._avals)) if self._has_seeds else tensors


def _make_spec(name: str, aval: Aval) -> tf.TensorSpec:
    shape = [None if is_symbolic_dim(d) else d for d in aval.shape]
    return tf.TensorSpec(shape, op_dtype(aval, f"The input {name}"), name)


def choose_order(portable: PortableFunction, vjp_order: int | None) -> int | None:
    """Returns the number of orders of gradients to save; None for a function without a gradient.

    The default is the number that the portable function holds, and at least one, if possible.
    """
    if vjp_order == 0:
        return 0
    if portable.gradient_problem() is not None:
        return None
    if vjp_order is not None:
        return int(vjp_order)
    try:
        first = portable.vjp()
    except BridgeError:
        return None  # gradient_problem() says why from now on
    return len(get_stored_functions(first))


def _make_flat_function(
    portable: PortableFunction,
    weights: Sequence[tf.Variable],
    constants: Constants,
    orders: StoredGradients | None,
) -> Callable[..., Sequence[tf.Tensor]]:
    """Makes one TF function over weights, constants and the other flat arguments."""
    first = len(weights)
    weight_avals, input_avals = portable.in_avals[:first], portable.in_avals[first:]
    lifted = {} if orders is None else orders.constants
    signature = [
        *(_make_spec(f"weight_{i}", as_op_aval(a)) for i, a in enumerate(weight_avals)),
        *(_make_spec(f"constant_{i}", a) for i, a in enumerate(lifted.values())),
        *(_make_spec(f"input_{i}", as_op_aval(a)) for i, a in enumerate(input_avals)),
    ]
    last = first + len(lifted)

    def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
        lifted_tensors = dict(zip(lifted, tensors[first:last], strict=True))
        args = [*tensors[:first], *tensors[last:]]
        return call_flat(portable, args, True, constants, orders, lifted_tensors)

    flat.__name__ = flat.__qualname__ = portable.name
    return TracedOnce(flat, signature)


def _seed_to_key(seed: tf.Tensor, aval: Aval) -> tf.Tensor:
    """Makes the words of a key from a seed, as jax.random.key does."""
    if aval.dtype not in KEYS:
        return seed
    return tf.stack([tf.zeros_like(seed), seed] * (KEYS[aval.dtype].words // 2), axis=-1)


_MAX_OPTIONAL = 5
"""Maximum number of optional inputs of which calls may leave out any subset."""


@dataclass(frozen=True)
class PaddedCall:
    """Call of a signature that pads its inputs to buckets.

    Attributes:
      bucketing: the sizes that the function runs at.
      call: the function from named inputs of any sizes to named outputs.
      piece_gradients: the gradients of sizes that run in pieces.
      notes: facts about the buckets, as text.
    """

    bucketing: Bucketing
    call: NamedCall
    piece_gradients: PieceGradients
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Endpoint:
    """Function with its weights, ready to be called and saved.

    Attributes:
      name: the signature's name.
      signature: the user's Signature.
      function: the function, with its weights and constants.
      padded: the call that pads to buckets; None without buckets.
    """

    name: str
    signature: Signature
    function: WeightedFunction
    padded: PaddedCall | None = None

    def call(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Calls the function, padded if it has buckets, with its inputs by name.

        Assigns the new weights, if it has them.
        """
        function = self.function
        if not function.updates:
            return self._compute(tensors)
        return cast(
            "Mapping[str, Any]",
            function.lock.run_alone(lambda: function.assign(self._compute(tensors))),
        )

    def _compute(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.padded is not None:
            return self.padded.call(tensors)
        return self.function.call(Inputs(tensors, self.function.read_held()))

    @property
    def portable(self) -> PortableFunction:
        """The portable function."""
        return self.function.portable

    @property
    def bucketing(self) -> Bucketing | None:
        """The sizes that it runs at; None without buckets."""
        return None if self.padded is None else self.padded.bucketing

    @cached_property
    def inputs(self) -> tuple[NamedPort, ...]:
        """The inputs without weights and masks."""
        return tuple(port for port in self.function.inputs if port not in self.masks)

    @cached_property
    def masks(self) -> tuple[NamedPort, ...]:
        """The inputs that the buckets fill, in the order in which the user names them."""
        by_name = {port.name: port for port in self.function.inputs}
        return tuple(by_name[name] for name in (self.bucketing.masks if self.bucketing else ()))

    @property
    def outputs(self) -> tuple[NamedPort, ...]:
        """The outputs of the function, before any postprocess."""
        return self.function.outputs

    def signature_inputs(self) -> SignatureInputs:
        """Returns its inputs with the options that name them."""
        return SignatureInputs(self.name, self.signature, self.inputs)

    def specs(self) -> dict[str, tf.TensorSpec]:
        """Returns the arguments of its tf.function, by name."""
        return {port.name: _make_spec(port.name, port.aval) for port in self.inputs}

    def saved_inputs(self) -> dict[str, tf.TensorSpec]:
        """Returns the inputs of the saved signature: those of its preprocess, if it has one."""
        processing = self.signature.processing
        if processing.preprocess is None:
            return self.specs()
        return {n: tf.TensorSpec(s.shape, s.dtype, n) for n, s in processing.inputs.items()}

    def method(self, signature: Callable[..., Any]) -> tuple[Any, list[tuple[Any, Any]]]:
        """Makes a method with the arguments of the JAX function.

        Args:
          signature: the traced signature. The method calls it, so that padding and pieces are
            traced once.

        Returns:
          A tf.function, and the specs (args, kwargs) of each trace: with all arguments, and without
          subsets of those that have a default.
        """
        arguments, out_tree = self.arguments, to_plain_containers(self.function.out_tree)
        names, tensors = arguments.names, self.defaults()
        defaults = {p.path: tensors[p.name] for p in self.inputs if p.name in tensors}

        def method(*args: Any, **kwargs: Any) -> Any:
            by_name = zip(args, itertools.chain(names, itertools.repeat("")), strict=False)
            filled = [defaults.get(name) if a is None else a for a, name in by_name]
            options = {k: defaults.get(k) if v is None else v for k, v in kwargs.items()}
            leaves = arguments.flatten(filled, options)
            results = signature(**{p.name: x for p, x in zip(self.inputs, leaves, strict=True)})
            return out_tree.unflatten(results[port.name] for port in self.outputs)

        method.__name__ = method.__qualname__ = self.portable.name
        method.__signature__ = _python_signature(arguments, defaults)  # type: ignore[attr-defined]
        args, kwargs = arguments.unflatten(self.specs().values())
        calls = [
            (
                tuple(None if n in left_out else a for n, a in zip(names, args, strict=True)),
                {k: None if k in left_out else v for k, v in kwargs.items()},
            )
            for left_out in list_optional_subsets(
                [n for n in defaults if n in names or n in kwargs]
            )
        ]
        return tf.function(method, autograph=False), calls

    def trace_unprocessed(self) -> Any:
        """Traces its function without preprocess and postprocess, over named tensors."""

        def by_name(**tensors: Any) -> dict[str, Any]:
            return dict(self.call(tensors))

        function = tf.function(by_name, autograph=False)
        function.get_concrete_function(**self.specs())
        return function

    def defaults(self) -> dict[str, tf.Tensor]:
        """Returns the defaults of inputs as tensors.

        Raises:
          SavingError: a default does not fit its input.
        """
        return {
            name: self.convert_value("default of", name, value)
            for name, value in self.signature.defaults.items()
        }

    def example(self) -> Mapping[str, Any]:
        """Returns the user's example of a signature with buckets, or without open sizes.

        Raises:
          SavingError: there are several; or as for `examples`.
        """
        examples = self.examples()
        if len(examples) > 1:
            sizes = "buckets" if self.bucketing is not None else "only fixed sizes"
            raise SavingError(
                f"example of the signature {self.name}, which has {sizes}, must be one mapping of "
                "values by input. A list of mappings is for signatures with a preprocess, or with "
                "open sizes and no buckets."
            )
        return examples[0] if examples else {}

    def examples(self) -> list[Mapping[str, Any]]:
        """Returns the user's examples of a signature without preprocess.

        Values are cast like arguments: lists get the dtype of their input, and 64 bits become 32 if
        the input has 32.

        Raises:
          SavingError: an example is not a mapping, or has a list that cannot become an array of the
            input's dtype and shape.
        """
        return [
            {name: self._example_value(name, value) for name, value in example.items()}
            for example in list_examples(self.name, self.signature)
        ]

    def _example_value(self, name: str, value: Any) -> Any:
        aval, value = self._find_argument(name), keys_as_words(value)
        if aval is None:  # an unknown name; the user of the example reports it
            return value
        if not hasattr(value, "dtype"):
            return self.convert_value("example for", name, value).numpy()
        # A model for converters takes float32 in place of bfloat16.
        if is_accepted_as(value, aval.op_dtype, accepts_bfloat16=aval.widened):
            _refuse_overflow(self._place("example for", name), value, aval)
            return np.asarray(value).astype(tf.as_dtype(aval.op_dtype).as_numpy_dtype)
        return value

    def _find_argument(self, name: str) -> Aval | None:
        """Returns the type of the function's argument for an input; None for other names."""
        path = next((port.path for port in self.inputs if port.name == name), None)
        return next((p.aval for p in self.portable.inputs if p.path == path), None)

    def convert_value(self, what: str, name: str, value: Any) -> tf.Tensor:
        """Converts a value for an input to a tensor.

        Args:
          what: "default of" or "example for", for messages.
          name: the input's name.
          value: the user's value.

        Raises:
          SavingError: it has another dtype or shape, or integers that the dtype does not hold.
        """
        expected = self.saved_inputs()[name]
        place, value = self._place(what, name), keys_as_words(value)
        try:
            tensor = tf.constant(value, expected.dtype)
        except (TypeError, ValueError) as e:
            raise SavingError(
                f"{place} does not fit it: expected {expected.dtype.name}, got "
                f"{_format_value(value)}. {e}"
            ) from e
        is_argument = self.signature.processing.preprocess is None
        aval = self._find_argument(name) if is_argument else None
        _refuse_overflow(place, value, aval or Aval((), expected.dtype.name))
        if not expected.shape.is_compatible_with(tensor.shape):
            raise SavingError(f"{place} has the shape {tensor.shape}, expected {expected.shape}.")
        return tensor

    def _place(self, what: str, name: str) -> str:
        return f"The {what} the input {name} of the signature {self.name}"

    @cached_property
    def arguments(self) -> CallStructure:
        """Structure of the arguments without weights and masks, in containers that can be saved."""
        structure = CallStructure.of(self.portable.in_tree, self.portable.argument_names)
        if self.takes_params:
            structure = replace(structure, args=structure.args[1:])
        return structure.without([mask.path for mask in self.masks]).map(to_plain_containers)

    @property
    def is_processed(self) -> bool:
        """True if the user's own functions run before or after it."""
        processing = self.signature.processing
        return processing.preprocess is not None or processing.postprocess is not None

    def gradient_functions(self) -> list[Any]:
        """Traces its gradients, for the saved object."""
        orders = self.function.orders
        functions = [] if orders is None else orders.concrete_functions()
        if self.padded is not None:
            functions += self.padded.piece_gradients.concrete_functions()
        return functions

    @property
    def takes_params(self) -> bool:
        """True if its first argument is the weights."""
        return self.signature.takes_params is True


def _python_signature(arguments: CallStructure, optional: Collection[str]) -> inspect.Signature:
    """Returns the arguments as Python parameters, so that callers can also pass them by name."""
    names: Sequence[str] = arguments.names
    if not all(name.isidentifier() and not iskeyword(name) for name in names):
        names = [f"arg_{i}" for i in range(len(names))]
    parameters = []
    default: Any = inspect.Parameter.empty
    for name in names:
        # In Python, all positional parameters after an optional one are optional.
        default = None if name in optional else default
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(name, kind, default=default))
    for name, _ in arguments.kwargs:
        default = None if name in optional else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def _format_value(value: Any) -> str:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return array_type_text(value.dtype, value.shape)
    return repr(value)


def _refuse_overflow(place: str, value: Any, aval: Aval) -> None:
    """Raises for integers beyond a dtype, which NumPy and TensorFlow would wrap around."""
    dtype = aval.op_dtype if aval.is_key else aval.dtype
    row = find_dtype(dtype)
    if row is None or not row.is_integer:
        return
    try:
        array = np.asarray(value)
    except ValueError:
        return  # rows of different lengths, which TensorFlow refuses
    if array.dtype.kind not in "iu" or not array.size:
        return
    lowest, highest = row.limits
    for extreme in (int(array.min()), int(array.max())):
        if not lowest <= extreme <= highest:
            raise SavingError(
                f"{place} holds {extreme}, and {dtype} is from {lowest} to {highest}. Give "
                "a number in this range, or export the function for a wider dtype."
            )


def to_plain_containers(tree: TreeSpec) -> TreeSpec:
    """Replaces custom nodes and named tuples by dicts and tuples, which a SavedModel can hold."""
    children = tuple(map(to_plain_containers, tree.children))
    has_names = all(isinstance(key, str) for key in tree.keys)
    if has_names and tree.kind not in ("custom", "namedtuple"):
        return replace(tree, children=children)
    if has_names and tree.keys:
        return TreeSpec("dict", keys=tree.keys, children=children)
    return TreeSpec("tuple", children=children)


def list_optional_subsets(optional: Sequence[str]) -> list[frozenset[str]]:
    """Lists the sets of inputs that a call may leave out: all subsets, or of many none and all.

    >>> [sorted(names) for names in list_optional_subsets(["x", "y"])]
    [[], ['x'], ['y'], ['x', 'y']]
    """
    if len(optional) > _MAX_OPTIONAL:
        return [frozenset(), frozenset(optional)]
    counts = range(len(optional) + 1)
    return [frozenset(names) for n in counts for names in itertools.combinations(optional, n)]

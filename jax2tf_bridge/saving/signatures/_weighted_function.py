"""Functions of named inputs with their weights and constants, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge._dtypes import KEYS
from jax2tf_bridge.errors import BridgeError
from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.saving.buckets import Inputs
from jax2tf_bridge.saving.signatures._inputs import (
    NamedPort,
    SignatureInputs,
    as_op_aval,
    name_ports,
)
from jax2tf_bridge.saving.signatures._signature import Signature
from jax2tf_bridge.to_tensorflow import (
    Constants,
    StoredGradients,
    TracedOnce,
    call_flat,
    op_dtype,
)
from shape_poly import is_symbolic_dim


class WeightedFunction:
    """Function of named inputs that holds weights and constants.

    Attributes:
      portable: the portable function.
      weights: the weights for its first argument; empty if it takes none.
      inputs: the inputs without weights, with the masks.
      outputs: the outputs.
      orders: the gradients; None for a function without a gradient.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        weights: Sequence[tf.Variable],
        constants: Constants,
        vjp_order: int | None,
    ) -> None:
        """Names the inputs and outputs of a signature whose function is a portable function.

        Raises:
          SavingError: names clash or do not exist.
        """
        portable: PortableFunction = signature.function
        self.portable, self.weights = portable, weights
        first = len(weights)
        self._avals = portable.in_avals[first:]
        self._has_seeds = signature.seed == "scalar"
        paths = portable.in_paths()[first:]
        self.inputs: tuple[NamedPort, ...] = SignatureInputs.of(
            name, signature, paths, self._avals
        ).ports
        self.outputs = name_ports(
            "output",
            name,
            signature.output_names,
            tuple(portable.out_tree.leaf_paths()),
            portable.out_avals,
        )
        # Without orders, TensorFlow's PreventGradient says why there is no gradient.
        self.orders = None if vjp_order is None else StoredGradients(portable, vjp_order, constants)
        self._flat = _flat(portable, weights, constants, self.orders)

    def read_held(self) -> list[tf.Tensor]:
        """Reads the weights and the lifted constants."""
        constants = [] if self.orders is None else self.orders.lifted_constants().values()
        return [*(variable.read_value() for variable in self.weights), *constants]

    def call(self, inputs: Inputs) -> dict[str, Any]:
        """Calls the function; all inputs have the sizes that it runs at."""
        results = self._flat(*inputs.held, *self._arguments(inputs.named))
        return {port.name: r for port, r in zip(self.outputs, results, strict=True)}

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
            [cotangents[port.name] for port in self.outputs],
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
        return list(map(_key_of, tensors, self._avals)) if self._has_seeds else tensors


def spec(name: str, aval: Aval) -> tf.TensorSpec:
    """Returns the spec of an input, for a tf.function."""
    shape = [None if is_symbolic_dim(d) else d for d in aval.shape]
    return tf.TensorSpec(shape, op_dtype(aval, f"The input {name}"), name)


def choose_order(portable: PortableFunction, asked: int | None) -> int | None:
    """Returns the number of orders of gradients to save; None for a function without a gradient.

    The default is the number that the portable function holds, and at least one, if possible.
    """
    if asked == 0:
        return 0
    if portable.gradient_problem() is not None:
        return None
    if asked is not None:
        return asked
    try:
        first = portable.vjp()
    except BridgeError:
        return None  # gradient_problem() says why from now on
    order, vjp = 1, first.gradient.made
    while vjp is not None:
        order, vjp = order + 1, vjp.gradient.made
    return order


def _flat(
    portable: PortableFunction,
    weights: Sequence[tf.Variable],
    constants: Constants,
    orders: StoredGradients | None,
) -> Callable[..., Sequence[tf.Tensor]]:
    """Makes one TF function over weights, constants and the other flat arguments."""
    first = len(weights)
    avals = portable.in_avals[first:]
    lifted = {} if orders is None else orders.constants
    signature = [
        *(tf.TensorSpec(variable.shape, variable.dtype) for variable in weights),
        *(spec(f"constant_{i}", aval) for i, aval in enumerate(lifted.values())),
        *(spec(f"input_{i}", as_op_aval(aval)) for i, aval in enumerate(avals)),
    ]
    last = first + len(lifted)

    def flat(*tensors: tf.Tensor) -> list[tf.Tensor]:
        known = dict(zip(lifted, tensors[first:last], strict=True))
        args = [*tensors[:first], *tensors[last:]]
        return call_flat(portable, args, True, constants, orders, known)

    flat.__name__ = flat.__qualname__ = portable.name
    return TracedOnce(flat, signature)


def _key_of(seed: tf.Tensor, aval: Aval) -> tf.Tensor:
    """Makes the words of a key from a seed, as jax.random.key does."""
    if aval.dtype not in KEYS:
        return seed
    return tf.stack([tf.zeros_like(seed), seed] * (KEYS[aval.dtype].words // 2), axis=-1)

"""Calls portable functions with their VJPs as TensorFlow's gradients, to any order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from jax2tf_bridge.portable import Aval, PortableFunction
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._constants import Constants, Key, constant_key
from jax2tf_bridge.to_tensorflow._dtypes import op_spec
from jax2tf_bridge.to_tensorflow._op import call_op, call_operations, check_versions
from jax2tf_bridge.to_tensorflow._shapes import EarlierShapeCheck, ShapeContract
from jax2tf_bridge.to_tensorflow._tf_functions import TracedOnce, opaque_to_autograph

_NO_GRADIENT = (
    "{name} was converted with with_gradient=False, so it has no gradient. "
    "Convert it with with_gradient=True."
)
_NOT_SAVED = (
    "tf.saved_model.save stores only the first-order gradient of {name}, so {vjp} has none. "
    "Differentiate the converted function as often as you need within a tf.function, and save "
    "that."
)
_LAST_ORDER = (
    "The gradients of {name} were saved up to order {order}. For more, save it with "
    "vjp_order={more}."
)


def call_flat(
    portable: PortableFunction,
    tensors: Sequence[tf.Tensor],
    with_gradient: bool,
    constants: Constants,
    orders: StoredGradients | None = None,
    lifted: Mapping[Key, tf.Tensor] | None = None,
) -> list[tf.Tensor]:
    """Calls a function on flat arguments of its dtypes, and names the results as jax2tf does.

    Args:
      portable: the function.
      tensors: one for each flat argument.
      with_gradient: whether the result has a gradient.
      constants: the source of the tensors of lifted constants.
      orders: the function's gradients, if they are saved with it as functions.
      lifted: with `orders`, the tensors of their lifted constants, if those exist already.
    """
    callee = _Callee(portable, constants, orders=orders)
    no_gradient_reason = None if with_gradient else _NO_GRADIENT.format(name=portable.name)
    if orders is not None:
        no_gradient_reason = orders.gradient_problem(0)
        callee = replace(callee, lifted=orders.lifted_constants() if lifted is None else lifted)
    if orders is None and no_gradient_reason is None and portable.target.xla and _is_in_branch():
        # After loading a SavedModel, TensorFlow finds no gradient for an If whose branch contains a
        # custom gradient directly. It finds the gradient of a function that the branch calls.
        function = tf.function(
            lambda *args: _call_named(callee, args, no_gradient_reason), autograph=False
        )
        return list(function(*tensors))
    return _call_named(callee, tensors, no_gradient_reason)


def _is_in_branch() -> bool:
    """Returns whether TensorFlow is tracing a branch, or the body of a loop."""
    kind = type(tf.compat.v1.get_default_graph()).__name__
    return kind in ("CondBranchFuncGraph", "WhileBodyFuncGraph")


class StoredGradients:
    """A function's gradients of several orders, as TF functions that a SavedModel can hold.

    TensorFlow saves the gradients of the functions that an object holds, but not the gradients of
    those gradients. So the object holds `functions`, traced, and the gradient of each order calls
    the function of the next order.

    Attributes:
      functions: the gradients of order 1, 2, ... Each takes the arguments of its VJP and then the
        lifted constants of all orders. In a branch or loop, a gradient may only use tensors that
        its function has; TensorFlow fails if it captures another tensor or variable.
      constants: the types of the lifted constants of all orders, in the order of
        `lifted_constants()`.
      order: the requested number of orders. There are fewer `functions` if TensorFlow
        differentiates the function's operations itself.
    """

    def __init__(self, portable: PortableFunction, order: int, constants: Constants) -> None:
        """Makes the gradients of a function up to `order`.

        Raises:
          GradientError, InconclusiveShapeError: the function has fewer gradients.
        """
        self.order, self._name = order, portable.name
        callees = self._callees = [_Callee(portable, constants, orders=self)]
        # If TensorFlow differentiates the operations itself, no functions are needed.
        for _ in range(0 if has_tensorflow_gradient(portable) else order):
            callees.append(callees[-1].vjp())
        self.constants = {
            constant_key(c): c.aval for callee in callees for c in callee.portable.lifted_constants
        }
        self.functions = [self._make_function(callee) for callee in callees[1:]]

    def lifted_constants(self) -> dict[Key, tf.Tensor]:
        """Returns the lifted constants of all orders, in the current graph."""
        lifted: dict[Key, tf.Tensor] = {}
        for callee in self._callees:
            lifted |= replace(callee, lifted=lifted).get_lifted()
        return lifted

    def call(
        self, order: int, args: Sequence[tf.Tensor], lifted: Mapping[Key, tf.Tensor]
    ) -> list[tf.Tensor]:
        """Calls the gradient of an order; `lifted` is the result of `lifted_constants()`."""
        return list(self.functions[order - 1](*args, *(lifted[key] for key in self.constants)))

    def pull_back(
        self,
        args: Sequence[tf.Tensor],
        cotangents: Sequence[tf.Tensor],
        lifted: Mapping[Key, tf.Tensor],
    ) -> list[tf.Tensor | None]:
        """Computes the cotangents of the function's arguments without running the function.

        Args:
          args: the arguments of the function.
          cotangents: one for each result, in TensorFlow's convention. For a result without a
            gradient, any tensor of its dtype and shape.
          lifted: the result of `lifted_constants()`.
        """
        return _pull_back(replace(self._callees[0], lifted=lifted), args, cotangents, cotangents)

    def gradient_problem(self, order: int) -> str | None:
        """Explains why the function of this order has no gradient; None if it has one."""
        is_native = has_tensorflow_gradient(self._callees[0].portable)
        return None if is_native or order < len(self.functions) else self.end_problem(order)

    def end_problem(self, order: int) -> str | None:
        """Explains why the last saved order has no gradient; None for the orders before it."""
        if order < self.order:
            return None
        return _LAST_ORDER.format(name=self._name, order=self.order, more=self.order + 1)

    def concrete_functions(self) -> list[Any]:
        """Traces all functions, so that they exist when TensorFlow looks for them."""
        # Tracing a function does not trace the next one, which only its gradient calls.
        return [function.concrete for function in self.functions]

    def _make_function(self, callee: _Callee) -> TracedOnce:
        signature = [
            op_spec(aval, f"An argument of {callee.portable.name}")
            for aval in (*callee.portable.in_avals, *self.constants.values())
        ]
        n_args = len(callee.portable.in_avals)

        @opaque_to_autograph
        def vjp(*args: tf.Tensor) -> list[tf.Tensor]:
            lifted = dict(zip(self.constants, args[n_args:], strict=True))
            return _call_named(
                replace(callee, lifted=lifted), args[:n_args], self.gradient_problem(callee.order)
            )

        return TracedOnce(vjp, signature)


def has_tensorflow_gradient(portable: PortableFunction) -> bool:
    """Returns whether TensorFlow differentiates the operations to any order, without a VJP."""
    return portable.tensorflow_differentiates and not portable.target.xla


@dataclass(frozen=True)
class _Callee:
    """A function to call, or the VJP of `primal`.

    Attributes:
      portable: the function.
      constants: the source of the tensors of lifted constants.
      primal: the function whose VJP this is; None if it is no VJP.
      order: the number of differentiations that led to it.
      orders: the gradients that are saved with the function, if any.
      saving: the argument of `Constants.tensors`.
      lifted: the tensors of lifted constants that already exist in the current graph.
    """

    portable: PortableFunction
    constants: Constants
    primal: _Callee | None = None
    order: int = 0
    orders: StoredGradients | None = None
    saving: Collection[Key] | None = None
    lifted: Mapping[Key, tf.Tensor] = field(default_factory=dict)

    def call(self, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the results, without a gradient."""
        before = None
        if self.primal is not None:
            primal = self.primal.portable
            before = EarlierShapeCheck(len(primal.in_avals), ShapeContract.of(primal))
        lifted = self.get_lifted()
        constants = [lifted[constant_key(c)] for c in self.portable.lifted_constants]
        if self.portable.target.xla:
            return call_op(self.portable, args, constants, self.paths, before)
        # A gradient may use Bitcast, because converters do not convert saved gradients.
        return call_operations(
            self.portable, args, constants, self.paths, before, refuses_bits=self.primal is None
        )

    def get_lifted(self) -> dict[Key, tf.Tensor]:
        """Returns `lifted`, and the tensors of this function's lifted constants."""
        new = tuple(c for c in self.portable.lifted_constants if constant_key(c) not in self.lifted)
        if not new:
            return dict(self.lifted)
        tensors = self.constants.tensors(replace(self.portable, lifted_constants=new), self.saving)
        if not tf.executing_eagerly():
            # Copied into this graph: TensorFlow fails if the gradient of a branch captures eager
            # tensors.
            tensors = [tf.identity(tensor, "jax2tf_constant") for tensor in tensors]
        return {**self.lifted, **dict(zip(map(constant_key, new), tensors, strict=True))}

    def paths(self) -> tuple[str, ...]:
        """Returns the arguments' names in messages: first the primal's, then the cotangents."""
        if self.primal is None:
            return self.portable.in_paths()
        cotangents = (
            f"the cotangent of result {i}" for i in range(len(self.primal.portable.out_avals))
        )
        return (*self.primal.paths(), *cotangents)

    def vjp(self) -> _Callee:
        return replace(self, portable=self.portable.vjp(), primal=self, order=self.order + 1)


def _call_named(
    callee: _Callee, tensors: Sequence[tf.Tensor], no_gradient_reason: str | None
) -> list[tf.Tensor]:
    """Implements `call_flat`; `no_gradient_reason` is the message if there is no gradient."""
    inputs = [tf.identity(t, f"jax2tf_arg_{i}") for i, t in enumerate(tensors)]
    if no_gradient_reason is None and has_tensorflow_gradient(callee.portable):
        return [tf.identity(result, "jax2tf_out") for result in callee.call(inputs)]
    if no_gradient_reason is None and callee.orders is None and not tf.executing_eagerly():
        # In a graph the gradient is checked early: TensorFlow saves a SavedModel with its
        # gradients, and saves nothing if one of them cannot be traced.
        no_gradient_reason = callee.portable.gradient_problem()
    if no_gradient_reason is None:
        results = _call_differentiable(callee, inputs)
    elif callee.portable.target.for_converters:
        # Converters do not support PreventGradient. With stop_gradient the gradient is None.
        results = list(map(tf.stop_gradient, callee.call(inputs)))
    else:
        # A TF op, so that the message survives saving and loading.
        results = [
            tf.raw_ops.PreventGradient(input=result, message=no_gradient_reason)
            for result in callee.call(inputs)
        ]
    return [tf.identity(result, "jax2tf_out") for result in results]


def _call_differentiable(callee: _Callee, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Calls the function; the results are differentiable as often as there are VJPs."""
    lifted = callee.get_lifted() if args else {}

    @tf.custom_gradient
    def call(*inputs: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., Any]]:
        primals, constants = inputs[: len(args)], inputs[len(args) :]
        inner_callee = replace(callee, lifted=dict(zip(lifted, constants, strict=True)))
        with _tf_compat.pause_recording():
            results = inner_callee.call(primals)

        @opaque_to_autograph
        def gradient(*cotangents: tf.Tensor | None, variables: Any = None) -> list[Any]:
            if variables:
                raise ValueError(
                    f"{callee.portable.name} reads no variables, but TensorFlow asks for the "
                    f"gradients of {variables}. Pass them as arguments."
                )
            if _tf_compat.is_tracing_gradient_to_save():
                _tf_compat.find_inputs_by_identity(inputs)
            with tf.name_scope("jax2tf_vjp"):
                arg_cotangents = _pull_back(inner_callee, primals, results, cotangents)
                return [*arg_cotangents, *(None for _ in constants)]

        return results, gradient

    # tf.custom_gradient fails for a function without arguments.
    return list(call(*args, *lifted.values())) if args else callee.call(args)


def _pull_back(
    callee: _Callee,
    primals: Sequence[tf.Tensor],
    results: Sequence[tf.Tensor],
    cotangents: Sequence[tf.Tensor | None],
) -> list[tf.Tensor | None]:
    portable = callee.portable
    out_cotangents = [
        _to_jax_cotangent(cotangent, aval, result)
        for cotangent, aval, result in zip(cotangents, portable.out_avals, results, strict=True)
    ]
    if callee.orders is not None:
        arg_cotangents = callee.orders.call(
            callee.order + 1, [*primals, *out_cotangents], callee.lifted
        )
    else:
        arg_cotangents = _call_vjp(callee, [*primals, *out_cotangents])
    return [
        convert_cotangent(value) if aval.is_differentiable else None
        for value, aval in zip(arg_cotangents, portable.in_avals, strict=True)
    ]


def _call_vjp(callee: _Callee, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    portable, vjp = callee.portable, callee.vjp()
    check_versions(vjp.portable)
    primal_keys = frozenset(map(constant_key, portable.lifted_constants))
    if not _tf_compat.is_tracing_gradient_to_save():
        # The gradient of a branch or loop cannot capture constants that only the VJP has.
        return _call_named(replace(vjp, saving=primal_keys) if _is_nested() else vjp, args, None)
    # TF saves the gradients of the functions that it holds, but not the gradients of gradients.
    not_saved = _NOT_SAVED.format(name=portable.name, vjp=vjp.portable.name)
    return _call_named(
        replace(vjp, saving=primal_keys), args, vjp.portable.gradient_problem() or not_saved
    )


def _is_nested() -> bool:
    """Returns whether the current graph is nested in another function, as a branch is."""
    outer = getattr(tf.compat.v1.get_default_graph(), "outer_graph", None)
    return not tf.executing_eagerly() and hasattr(outer, "outer_graph")


def _to_jax_cotangent(cotangent: tf.Tensor | None, aval: Aval, result: tf.Tensor) -> tf.Tensor:
    if not aval.is_differentiable:
        # TF passes None or zeros of the result's dtype. JAX expects float0, passed as bool.
        zeros = tf.zeros_like(result, dtype=tf.bool)
        if aval.element_shape:
            zeros = tf.reduce_any(zeros, axis=list(range(-len(aval.element_shape), 0)))
        return zeros
    if cotangent is None:
        return tf.zeros_like(result)
    # The cotangent may be sparse, as that of tf.gather is.
    return convert_cotangent(tf.convert_to_tensor(cotangent))


def convert_cotangent(value: tf.Tensor) -> tf.Tensor:
    """Converts between the conventions of TensorFlow and JAX for complex gradients.

    JAX multiplies a cotangent by the Jacobian, TensorFlow by its conjugate.
    """
    return tf.math.conj(value) if value.dtype.is_complex else value

"""Signature: a function as `save` takes it, with its padding and the functions around it."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import tensorflow as tf

from jax2tf_bridge.errors import Argument, Message, SavingError
from jax2tf_bridge.portable import PolyConstraints, PortableFunction


@dataclass(frozen=True)
class Processing:
    """TensorFlow functions around the function of a signature.

    Attributes:
      preprocess: a TensorFlow function that is called with the inputs by keyword and returns the
        arguments without the weights: one value, a tuple, or a dict by the argument's name. 64-bit
        values, such as the int64 of a lookup table, are cast if the function takes 32 bits;
        nothing else is cast.
      inputs: maps the names of the inputs of `preprocess` to their tf.TensorSpec.
      postprocess: a TensorFlow function that is called with the results by keyword and returns the
        outputs: a dict by name, one tensor ("output_0"), or several in order.
      resources: lookup tables, variables and modules that the functions use and TensorFlow has to
        save; the bridge finds those that the functions close over.

    >>> Processing(preprocess=lambda pixels: pixels / 255.0).postprocess is None
    True
    """

    preprocess: Callable[..., Any] | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    postprocess: Callable[..., Any] | None = None
    resources: Sequence[Any] = ()


@dataclass(frozen=True)
class Padding:
    """Padding of a signature's inputs to buckets.

    Attributes:
      buckets: as in `save`, for this signature alone; by default those of `save`.
      mask: the name of the input that is true for real elements and false for padding, as "mask" of
        the shape (b,), (b, n) or (b, 1, 1, n); or several such names. The bridge fills it, so
        callers do not pass it.
      pad_values: the values that inputs are padded with, by name, as {"ids": 1}; zeros by default.
      unchecked_padding: dimension variables, as ["n"], for which you vouch that padding changes no
        results, so `save` does not check it. The SavedModel records this.

    >>> Padding(buckets={"n": [16, 64]}, pad_values={"ids": 1}).mask is None
    True
    """

    buckets: Mapping[str, Sequence[int]] | None = None
    mask: str | Sequence[str] | None = None
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    unchecked_padding: Sequence[str] = ()


@dataclass(frozen=True)
class Signature:
    """A function as a signature of a SavedModel.

    Attributes:
      function: a JAX function, a PortableFunction, or the path of a .jaxfn file.
      args: examples of the positional arguments of a JAX function, without the weights: arrays or
        jax.ShapeDtypeStruct.
      kwargs: examples of its keyword arguments, all of which become inputs.
      polymorphic_shapes: as in `export`, for `args`.
      polymorphic_constraints: as in `export`.
      disabled_checks: the DisabledSafetyCheck of `export`.
      runtime_checks: as in `export`: "drop" leaves out the checks of values that
        equinox.error_if and checkify.check make while the function runs.
      takes_params: whether its first argument is the `params` of `save`; by default True if `save`
        gets params.
      updates_params: whether the signature changes weights. Its function returns the tuple
        (outputs, params): a call returns the outputs and assigns the new params to the variables,
        which all signatures share. Weights that are left out of the new params keep their values.
        Such a signature is saved without a gradient unless `vjp_order` asks for one.
      input_names: new names of inputs, by the name that follows from an argument or by its path,
        as {"x": "image"}.
      output_names: new names of outputs likewise; or one name for each, in order.
      defaults: values of inputs that a caller may leave out, by name. TensorFlow Serving fills
        them in over gRPC; over REST callers pass every input. The methods of a loaded model fill
        in any of up to five; if more have defaults, a call leaves out all of them or none.
        Arrays in containers have no defaults in methods. With `preprocess`, the names are those of
        its inputs.
      processing: TensorFlow functions that run before and after the function.
      seed: the form of PRNG keys among the inputs: "key" is their uint32 words; "scalar" is a
        seed, a uint32 from which jax.random.key makes the key.
      padding: the padding of inputs to buckets.
      example: values of inputs by name, for warm-up requests and for the trial of buckets. By
        default requests are zeros, and the trial draws values. With `preprocess`, these are values
        of its inputs, and there are no requests by default; pass a list of such mappings to reach
        buckets of several sizes. With open sizes and no buckets, each mapping is one request.
    """

    function: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    polymorphic_shapes: Any = None
    polymorphic_constraints: PolyConstraints = ()
    disabled_checks: Sequence[Any] = ()
    runtime_checks: Literal["drop"] | None = None
    takes_params: bool | None = None
    updates_params: bool = False
    input_names: Mapping[str, str] = field(default_factory=dict)
    output_names: Mapping[str, str] | Sequence[str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    processing: Processing = Processing()
    seed: Literal["key", "scalar"] = "key"
    padding: Padding = Padding()
    example: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict)


_MAX_GRAPH_BYTES = 2**31 - 1 - (1 << 20)
"""Maximum size of the modules in bytes: that of saved_model.pb, less room for the rest."""

_TAKEN = frozenset(
    {"params", "constants", "gradients", "signatures", "resources"}
    | {"unprocessed", "without_batching", "variables", "trainable_variables"}
    | {name for name in dir(tf.Module) if not name.startswith("_")}
)


def check_names(signatures: Mapping[str, Signature]) -> tuple[str, ...]:
    """Lists the signatures' names.

    Raises:
      SavingError: there are none, or a loaded model cannot have methods of these names.
    """
    if not isinstance(signatures, Mapping) or not signatures:
        raise SavingError(
            f"signatures must be a mapping with at least one signature. Got: {signatures!r}"
        )
    for name in signatures:
        if isinstance(name, str) and keyword.iskeyword(name):
            raise SavingError(
                f"A signature cannot be named {name!r}, a keyword of Python: the loaded model has "
                "a method of that name."
            )
        if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
            raise SavingError(
                f"A signature cannot be named {name!r}: the loaded model has a method of that "
                "name, so it must be a name of Python that begins with a letter."
            )
        if name in _TAKEN:
            raise SavingError(
                f"A signature cannot be named {name!r}: a loaded model has another attribute of "
                "that name."
            )
        if signatures[name].seed not in ("key", "scalar"):
            raise SavingError(
                f"seed of the signature {name} must be 'key' or 'scalar'. "
                f"Got: {signatures[name].seed!r}"
            )
    return tuple(signatures)


def check_takes_params(
    name: str, portable: PortableFunction, *, takes: bool, has_params: bool
) -> None:
    """Raises unless there are weights for a function that takes them, and a place for them."""
    if takes and not has_params:
        raise SavingError(
            f"The signature {name} has takes_params=True, but save got no params. "
            "Pass params=..., or leave out takes_params."
        )
    if takes and not portable.argument_names:
        raise SavingError(
            f"params were given, and {portable.name} of the signature {name} has no positional "
            "argument to take them. Give its Signature takes_params=False."
        )


def check_size(portables: Mapping[str, Iterable[PortableFunction]]) -> None:
    """Raises if the modules, by signature, do not fit into a graph."""
    sizes = {name: sum(len(r.module.data) for r in each) for name, each in portables.items()}
    if sum(sizes.values()) > _MAX_GRAPH_BYTES:
        each = ", ".join(f"{name}: {size / 1e9:.2f} GB" for name, size in sizes.items())
        raise SavingError(
            f"The modules take {sum(sizes.values()) / 1e9:.2f} GB ({each}), and a SavedModel's "
            "graph holds less than 2.15 GB. Arrays that the function computes with NumPy, or "
            "captures in a form that is not lifted, are the usual reason: pass them as params."
        )


def check_vjp_order(vjp_order: int | None) -> None:
    """Raises SavingError unless it is None or a number of orders of gradients."""
    if vjp_order is not None and (not isinstance(vjp_order, int) or vjp_order < 0):
        raise SavingError(
            Message(Argument("vjp_order"), f" must be an integer, 0 or more. Got: {vjp_order!r}")
        )

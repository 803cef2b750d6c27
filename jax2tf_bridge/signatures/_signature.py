"""Signature: a function as `save` takes it, with its padding and the functions around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable import PolyConstraints


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
      mask: the name of the input that is true for real elements and false for padding; or a list of
        such names. Its shape is, for example, (b,), (b, n) or (b, 1, 1, n). The bridge fills it, so
        callers do not pass it.
      pad_values: the values that inputs are padded with, by name, as {"ids": 1}; zeros by default.
      unchecked_padding: dimension variables, as ["n"]. You vouch that padding them changes no
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
      takes_params: whether the function's first argument is the `params` of `save`; by default True
        if `save` gets params.
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
      seed: the form of PRNG keys among the inputs: "key" passes their uint32 words; "scalar" passes
        a seed, a uint32 from which the model makes the key as jax.random.key does.
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


def list_masks(name: str, mask: Any) -> tuple[str, ...]:
    """Lists the names in the `mask` option.

    Raises:
      ShapeError: `mask` is neither a name, a list of names nor None.
    """
    if isinstance(mask, str):
        return (mask,)
    masks = () if mask is None else mask
    if not isinstance(masks, Sequence) or not all(isinstance(each, str) for each in masks):
        raise ShapeError(
            f"{name}: mask={mask!r}: expected the name of an input, as 'mask', or a list of names"
        )
    return tuple(masks)

"""Signature: a function as `save` takes it, with its padding and the functions around it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jax2tf_bridge.portable import PolyConstraints


@dataclass(frozen=True)
class Processing:
    """TensorFlow functions around the function of a signature.

    Attributes:
      preprocess: a TensorFlow function that is called with the inputs by keyword and returns the
        arguments without the weights: one value, a tuple, or a dict by the argument's name. Where
        the function takes 32 bits, 64 are cast (int64 of a lookup table); nothing else is.
      inputs: the inputs of `preprocess`: by name a tf.TensorSpec.
      postprocess: a TensorFlow function that is called with the results by keyword and returns the
        outputs: a dict by name, or one tensor ("output_0"), or several in order.
      resources: lookup tables, variables and modules that both use, which TensorFlow has to save
        with them. Those that the functions close over are found without being named.

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
      buckets: as in `save`, for this signature alone; None for those of `save`.
      mask: the input that is true for real elements and false for padding, as "mask" of the shape
        (b,), (b, n) or (b, 1, 1, n); or several such inputs. The buckets fill it, so callers do
        not pass it.
      pad_values: the values that inputs are padded with, by name, as {"ids": 1}; zeros by default.
      unchecked_padding: dimension variables, as ["n"], for which `save` does not try whether
        padding changes results: you vouch for it. The SavedModel says so.

    >>> Padding(buckets={"n": [16, 64]}, pad_values={"ids": 1}).mask is None
    True
    """

    buckets: Mapping[str, Sequence[int]] | None = None
    mask: str | Sequence[str] | None = None
    pad_values: Mapping[str, Any] = field(default_factory=dict)
    unchecked_padding: Sequence[str] = ()


@dataclass(frozen=True)
class Signature:
    """A function as a signature of a SavedModel, with what `save` needs to know of it.

    Attributes:
      function: a JAX function, a PortableFunction, or the path of a .jaxfn file.
      args: of a JAX function, examples of its positional arguments without the weights: arrays
        or jax.ShapeDtypeStruct.
      kwargs: the same of its keyword arguments, all of which become inputs.
      polymorphic_shapes: as in `export`, for `args`.
      polymorphic_constraints: as in `export`.
      disabled_checks: as in `export`, of DisabledSafetyCheck.
      runtime_checks: as in `export`: "drop" leaves out the checks of values that
        equinox.error_if and checkify.check make while the function runs.
      takes_params: whether its first argument is the `params` of `save`; None: if they are given.
      input_names: other names than those that follow from the arguments, by these or by paths:
        {"x": "image"}.
      output_names: the same of the results; or one name for each, in order.
      defaults: values of inputs that a caller may leave out, by name. TensorFlow Serving fills
        them in over gRPC; over REST callers pass every input. The methods of a loaded model fill
        in any of up to five; where more have defaults, a call leaves out all of them or none.
        Arrays within a container have no defaults there. With `preprocess` these are inputs of
        that function.
      processing: TensorFlow functions that run before and after the function.
      seed: how PRNG keys are given: "key" as their uint32 words, "scalar" as a seed, a uint32
        from which jax.random.key makes the same key.
      padding: how inputs are padded to buckets.
      example: values of inputs by name, for warm-up requests (zeros by default), and for the trial
        of buckets, which otherwise draws them. With `preprocess` of what that takes, and no
        requests by default; a list of such mappings where they differ in sizes that have buckets.
        With open sizes and no buckets, each of one or several is a request of its sizes.
    """

    function: Any
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    polymorphic_shapes: Any = None
    polymorphic_constraints: PolyConstraints = ()
    disabled_checks: Sequence[Any] = ()
    runtime_checks: Literal["drop"] | None = None
    takes_params: bool | None = None
    input_names: Mapping[str, str] = field(default_factory=dict)
    output_names: Mapping[str, str] | Sequence[str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    processing: Processing = Processing()
    seed: Literal["key", "scalar"] = "key"
    padding: Padding = Padding()
    example: Mapping[str, Any] | Sequence[Mapping[str, Any]] = field(default_factory=dict)

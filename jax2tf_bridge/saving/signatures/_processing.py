"""Puts the user's own TensorFlow functions around a signature."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import did_you_mean
from jax2tf_bridge.errors import BridgeError, SavingError, StructureError, format_bullets
from jax2tf_bridge.portable import is_accepted_as
from jax2tf_bridge.saving.buckets import NamedCall
from jax2tf_bridge.saving.signatures._endpoint import Endpoint
from jax2tf_bridge.signatures import NamedPort, ServedArray, Sides, Signature
from jax2tf_bridge.to_tensorflow import can_have_shape, cast_if_needed, op_dtype, tf_compat

_NUMBERS = (bool, int, float, complex)
_LIBRARIES = frozenset({"jax", "keras", "numpy", "tensorflow"})
"""Packages whose functions hold no objects of the user."""
_NOT_DENSE = (tf.RaggedTensor, tf.SparseTensor)


def wrap_call(endpoint: Endpoint) -> tuple[NamedCall, dict[str, tf.TensorSpec]]:
    """Wraps the endpoint's call in the user's functions; returns it with its new inputs.

    Raises:
      SavingError: postprocess does not take the outputs of the function.
    """
    name, processing, inputs = endpoint.name, endpoint.signature.processing, endpoint.saved_inputs()
    call = endpoint.call
    if processing.preprocess is not None:
        call = functools.partial(_call_with_preprocess, endpoint)
    postprocess = processing.postprocess
    if postprocess is None:
        return call, inputs
    _check_keywords("postprocess", postprocess, [port.name for port in endpoint.outputs], name)
    place = f"postprocess of the signature {name}"
    return lambda tensors: _name_outputs(place, _run(place, postprocess, call(tensors))), inputs


def check_processing(name: str, signature: Signature) -> None:
    """Checks the resources of a signature, and that its preprocess can be called with its inputs.

    Raises:
      SavingError: preprocess has no inputs or takes others, there are inputs without preprocess, or
        the resources are not a list.
    """
    processing = signature.processing
    resources: Any = processing.resources
    if not isinstance(resources, (list, tuple)):
        raise SavingError(
            f"resources of the signature {name} must be a list, as resources=[table]. "
            f"Got: {type(resources).__name__}."
        )
    if processing.preprocess is None:
        if processing.inputs:
            raise SavingError(
                f"The signature {name} has inputs but no preprocess, and `inputs` are those of "
                "preprocess. To rename inputs, use input_names."
            )
        return
    parameter = _get_first_parameter(processing.preprocess)
    example = f"{{{parameter!r}: tf.TensorSpec([None], tf.string)}}"
    if not processing.inputs:
        raise SavingError(
            f"The signature {name} has a preprocess but no inputs. Pass inputs={example}."
        )
    inputs: Any = processing.inputs
    if isinstance(inputs, Mapping):
        wrong = [f"{s!r} for {n!r}" for n, s in inputs.items() if not isinstance(s, tf.TensorSpec)]
    else:
        wrong = [type(inputs).__name__]
    if wrong:
        raise SavingError(
            f"inputs of the signature {name} must be a mapping of tf.TensorSpec by name, as "
            f"{example}. Got: {wrong[0]}."
        )
    _check_keywords("preprocess", processing.preprocess, processing.inputs, name)


def run_preprocess(endpoint: Endpoint, tensors: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Calls preprocess, and returns the arguments of the function by the names of its inputs.

    64-bit values become 32-bit if the function takes 32, as in `convert`.

    Raises:
      SavingError: the results of preprocess do not fit the function; each difference is listed.
    """
    preprocess = endpoint.signature.processing.preprocess
    assert preprocess is not None
    place = f"preprocess of the signature {endpoint.name}"
    results = _run(place, preprocess, tensors)
    names = endpoint.arguments.names
    args, kwargs = _as_call(results, names)
    try:
        leaves = endpoint.arguments.flatten(args, kwargs)
    except StructureError as e:
        raise SavingError(
            f"{place} does not return the arguments of {endpoint.portable.name}: "
            f"{_format_names_hint(results, names)}{e}"
        ) from e
    inputs, problems = {}, []
    for leaf, port in zip(leaves, endpoint.inputs, strict=True):
        problem = _find_problem(leaf, port)
        if problem is None:
            inputs[port.name] = _as_input(leaf, port)
        else:
            problems.append(problem)
    if problems:
        hint = f" {_format_names_hint(results, names)}".rstrip()
        raise SavingError(
            f"{place} does not return the arguments of {endpoint.portable.name}:{hint}"
            f"{format_bullets(problems)}"
            "\nChange what preprocess returns, or save the function for such arguments."
        )
    return inputs


def _call_with_preprocess(endpoint: Endpoint, tensors: Mapping[str, Any]) -> dict[str, Any]:
    inputs, specs = run_preprocess(endpoint, tensors), endpoint.specs()
    for name, tensor in inputs.items():
        shape = specs[name].shape
        if tensor.shape.is_subtype_of(shape):
            continue
        if endpoint.portable.target.for_converters:  # TF.js and Core ML refuse EnsureShape
            inputs[name] = tf.identity(tensor)
            inputs[name].set_shape(shape)
        else:
            inputs[name] = tf.ensure_shape(tensor, shape, name=f"preprocess_gives_{name}")
    return dict(endpoint.call(inputs))


def _run(place: str, function: Callable[..., Any], tensors: Mapping[str, Any]) -> Any:
    """Calls a user function with symbolic tensors.

    Raises:
      SavingError: it is Python code that needs values or methods of Python objects.
    """
    try:
        return function(**tensors)
    except BridgeError:
        raise
    except (AttributeError, NotImplementedError, TypeError) as e:
        raise SavingError(
            f"{place} runs as TensorFlow code, with tensors that have no values yet, and failed: "
            f"{type(e).__name__}: {e}. Python code, such as a tokenizer, cannot run there. Write "
            "it with TensorFlow's operations (tf.strings, tf.lookup, tensorflow_text), or do it "
            "before the request."
        ) from e


def _get_first_parameter(function: Callable[..., Any]) -> str:
    try:
        return next(iter(inspect.signature(function).parameters), "image")
    except (TypeError, ValueError):  # it has no signature
        return "image"


def _format_names_hint(results: Any, names: Sequence[str]) -> str:
    """Compares the names of a dict that preprocess returned with those of the arguments."""
    if not isinstance(results, Mapping) or set(names) <= set(results):
        return ""
    missing = [name for name in names if name not in results]
    others = [str(key) for key in results if key not in names]
    hints = [f"{name}{did_you_mean(name, others, quoted=True)}" for name in missing]
    names_text = ", ".join(map(repr, results)) or "no names"
    text = f"it returns {names_text}, and lacks {' and '.join(hints)}"
    return f"{text} " if text.endswith("?") else f"{text}. "


def _as_call(results: Any, names: Sequence[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the results of preprocess as positional and keyword arguments."""
    if isinstance(results, tuple):
        return results, {}
    if isinstance(results, Mapping) and set(names) <= set(results):
        kwargs = dict(results)
        return tuple(kwargs.pop(name) for name in names), kwargs
    return (results,), {}


def _find_problem(leaf: Any, port: NamedPort) -> str | None:
    """Returns why a value cannot be an argument, and what to do; None if it can."""
    aval = port.aval
    expected = f"{port.path}: expected {ServedArray.of_aval(aval)}, got"
    if isinstance(leaf, _NOT_DENSE):
        dense = "to_tensor()" if isinstance(leaf, tf.RaggedTensor) else "tf.sparse.to_dense"
        return f"{expected} a {type(leaf).__name__}. Make it dense: {dense}."
    try:
        tensor = tf.convert_to_tensor(leaf)
    except (TypeError, ValueError):
        return f"{expected} {leaf!r} of type {type(leaf).__name__}."
    got = f"{expected} {ServedArray.of_tensor(tensor)}"
    if tensor.dtype == tf.string:
        return f"{got}. Convert it to numbers with a lookup table or tf.strings.to_number."
    if not is_accepted_as(leaf if isinstance(leaf, _NUMBERS) else tensor, aval.op_dtype):
        return f"{got}. Cast it: tf.cast(..., tf.{aval.op_dtype})."
    if can_have_shape(tensor, aval):
        return None
    rank = len(aval.op_shape)
    if tensor.shape.rank != rank:
        return f"{got}. It must have {rank} dimension{'' if rank == 1 else 's'}."
    return f"{got}. Its sizes are fixed: open them with polymorphic_shapes."


def _as_input(leaf: Any, port: NamedPort) -> tf.Tensor:
    dtype = op_dtype(port.aval, f"The input {port.name}")
    if isinstance(leaf, _NUMBERS):
        return tf.constant(leaf, dtype)
    return cast_if_needed(tf.convert_to_tensor(leaf), dtype)


def _name_outputs(place: str, results: Any) -> dict[str, Any]:
    """Returns the results of postprocess by name; numbers those without a name."""
    if not isinstance(results, Mapping):
        sequence = results if isinstance(results, (tuple, list)) else [results]
        results = {f"output_{i}": result for i, result in enumerate(sequence)}
    for key, value in results.items():
        if not isinstance(key, str):
            raise SavingError(f"{place} returns an output named {key!r}: names are strings.")
        if value is None or isinstance(value, (Mapping, tuple, list)):
            raise SavingError(
                f"{place} returns a {type(value).__name__} for the output {key}. Return a flat "
                "dict of tensors, as {'label': label, 'scores': scores}."
            )
    try:
        return {
            key: value if isinstance(value, _NOT_DENSE) else tf.convert_to_tensor(value)
            for key, value in results.items()
        }
    except (TypeError, ValueError) as e:
        raise SavingError(f"{place} returns a value that is no tensor: {e}") from e


def _check_keywords(
    kind: str, function: Callable[..., Any], keywords: Iterable[str], name: str
) -> None:
    try:
        expected = inspect.signature(function)
    except (TypeError, ValueError):
        return  # it has no signature
    try:
        expected.bind(**dict.fromkeys(keywords))
    except TypeError as e:
        what, remedy = "inputs", ""
        if kind == "postprocess":
            what, remedy = "results of the function", ", or the results by output_names"
        raise SavingError(
            f"{kind} of the signature {name} is called with the {what} by keyword "
            f"({', '.join(keywords) or 'none'}), and takes {expected}: {e}. Rename its parameters"
            f"{remedy}."
        ) from e


def describe_arrays(endpoint: Endpoint, outputs: Mapping[str, Any]) -> Sides:
    """Describes the inputs and outputs of the saved signature, by name."""
    inputs = (
        {port.name: ServedArray.of_aval(port.aval) for port in endpoint.inputs}
        if endpoint.signature.processing.preprocess is None
        else {name: ServedArray.of_tensor(s) for name, s in endpoint.saved_inputs().items()}
    )
    # A dimension variable is informative only if inputs have it as well.
    if not endpoint.is_processed:
        return inputs, {port.name: ServedArray.of_aval(port.aval) for port in endpoint.outputs}
    return inputs, {name: ServedArray.of_tensor(t) for name, t in outputs.items()}


def list_resources(signature: Signature) -> list[Any]:
    """Lists the resources that the user names, and those that the user's functions refer to."""
    queue = [signature.processing.preprocess, signature.processing.postprocess]
    objects: dict[int, Any] = {}
    while queue:
        each = queue.pop()
        if id(each) not in objects:
            objects[id(each)] = each
            queue += _list_references(each)
    trackables = filter(tf_compat.is_trackable, objects.values())
    resources = [*signature.processing.resources, *trackables]
    return list({id(resource): resource for resource in resources}.values())


def _list_references(function: Any) -> list[Any]:
    """Lists the objects that a user function closes over, names, or is bound to."""
    if inspect.ismethod(function):
        return [function.__self__, function.__func__]
    if isinstance(function, functools.partial):
        return [function.func, *function.args, *function.keywords.values()]
    if not inspect.isfunction(function) or str(function.__module__).split(".")[0] in _LIBRARIES:
        return []
    try:
        closure = inspect.getclosurevars(function)
    except ValueError:  # a variable has no value yet
        return []
    names = _find_inner_names(function.__code__)
    globals_of_inner = [value for name, value in function.__globals__.items() if name in names]
    return [*closure.nonlocals.values(), *closure.globals.values(), *globals_of_inner]


def _find_inner_names(code: types.CodeType) -> set[str]:
    """Returns the global names in lambdas and functions that a function defines.

    inspect.getclosurevars does not look into these.
    """
    names: set[str] = set()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.update(constant.co_names, _find_inner_names(constant))
    return names

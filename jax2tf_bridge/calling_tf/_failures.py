"""Converts failures of TensorFlow functions to errors that name the function and operation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from jax2tf_bridge.errors import (
    BridgeError,
    CallTfError,
    GradientError,
    ShapeError,
    UnsupportedByTargetError,
)

_OPERATION = re.compile(r"\[Op:(\w+)\]|\{\{node [^}]*\}\} = (\w+)\[|__wrapped__(\w+?)_device_")
_NO_GRADIENT = re.compile(
    r"gradient defined for operation ?'[^']*' \(op type: (\w+)\)|registry has no entry for: (\w+)"
)
# TensorFlow looks up a custom gradient by the name "CustomGradient...", and then by the operation
# that marks the call, IdentityN.
_CUSTOM_GRADIENTS = ("CustomGradient", "IdentityN")
# A custom gradient that was defined in another function of this process uses that graph's tensors.
_OUT_OF_SCOPE = "is out of scope and cannot be used here"
_DISABLED = re.compile(r"Gradient explicitly disabled\. Reason: b'(.*)'\.?", re.DOTALL)
_UNSUPPORTED = re.compile(r"(\w+) \(No registered '(\w+)' OpKernel")
_NOT_CONSTANT = re.compile(r"Input (\d+) to node \S+ with op (?:\S+/)?(\w+) must be a compile-time")
_LOOP = re.compile(r"XLA compilation requires a fixed tensor list size")
_LIBRARY_FRAME = re.compile(r"/(tensorflow|jax|jax2tf_bridge)/|autograph_generated|<frozen")
_SOURCE = re.compile(r'File "([^"]+)", line (\d+), in')


@contextmanager
def convert_call_errors(name: str) -> Iterator[None]:
    """Converts exceptions of a TensorFlow function to errors that name it.

    Raises:
      CallTfError: the function raised; its exception is the cause.
    """
    try:
        yield
    except BridgeError as e:
        e.add_note(f"This happened while call_tf called the TensorFlow function {name}.")
        raise
    except Exception as e:
        match = _OPERATION.search(str(e))
        operation = next(filter(None, match.groups())) if match else None
        if operation is not None:
            operation = re.sub("^_*Mkl", "", operation)  # oneDNN's prefix
        place = f" in the operation {operation}" if operation else ""
        raise CallTfError(
            f"The TensorFlow function {name} raised {type(e).__name__}{place}: {_summarize(e)}",
            function=name,
            operation=operation,
        ) from e


@contextmanager
def convert_gradient_errors(name: str) -> Iterator[None]:
    """Converts TensorFlow's errors about missing gradients to errors that name the function.

    Raises:
      GradientError: TensorFlow has no gradient for an operation of the function, or the gradient
        was not saved.
    """
    try:
        yield
    except (LookupError, TypeError) as e:
        if isinstance(e, BridgeError):
            raise
        missing, disabled = _NO_GRADIENT.search(str(e)), _DISABLED.search(str(e))
        operation = (missing[1] or missing[2]) if missing else ""
        if _OUT_OF_SCOPE in str(e) or operation in _CUSTOM_GRADIENTS:
            raise make_gradient_not_saved_error(name) from e
        if missing:
            raise _make_no_gradient_error(
                name, f"TensorFlow defines none for the operation {operation}"
            ) from e
        if disabled:
            raise _make_no_gradient_error(name, disabled[1]) from e
        raise


def _make_no_gradient_error(name: str, reason: str) -> GradientError:
    return GradientError(
        f"The TensorFlow function {name} has no gradient: {reason}. Stop the gradient before "
        "it (tf.stop_gradient, jax.lax.stop_gradient), or give the function one by "
        "tf.custom_gradient."
    )


def make_gradient_not_saved_error(name: str) -> GradientError:
    """Makes the error for a function whose SavedModel has no gradients."""
    return GradientError(
        f"The TensorFlow function {name} has no gradient: its SavedModel was saved without the "
        "gradients that were defined for it. Save the model again with them: by "
        "jax2tf_bridge.save(..., vjp_order=1), or by tf.saved_model.save(..., options="
        "tf.saved_model.SaveOptions(experimental_custom_gradients=True))."
    )


def make_undetermined_size_error(
    name: str, i: int, size: object, missing: Iterable[str]
) -> ShapeError:
    """Makes the error for a declared size with variables that no argument determines."""
    return ShapeError(
        f"The result {i} of the TensorFlow function {name} is declared with the size {size}, which "
        "does not follow from the sizes of its arguments: none of these determines "
        f"{', '.join(sorted(missing))}. Declare another size in output_shape_dtype."
    )


def make_not_compilable_error(name: str, error: Exception) -> UnsupportedByTargetError:
    """Makes the error for a TensorFlow function that XLA cannot compile."""
    text = str(error)
    unsupported, variable = _UNSUPPORTED.search(text), _NOT_CONSTANT.search(text)
    if unsupported:
        operation = unsupported[2]
        reason = f"XLA does not support the operation {operation}"
    elif variable:
        operation = variable[2]
        reason = (
            f"input {variable[1]} of the operation {operation} must be known when it is compiled, "
            "since a shape depends on it"
        )
    elif _LOOP.search(text):
        operation = "While"
        reason = (
            "XLA differentiates a loop (While) only if it knows the maximum number of iterations, "
            "as in tf.while_loop(..., maximum_iterations=n)"
        )
    else:
        operation, reason = "", _summarize(error)
    frames = [frame for frame in _SOURCE.findall(text) if not _LIBRARY_FRAME.search(frame[0])]
    source = ":".join(frames[-1]) if frames else None
    at = f" at {source}" if source else ""
    return UnsupportedByTargetError(
        f"The TensorFlow function {name} cannot be compiled into a JAX program: {reason}{at}. "
        "Call it outside of jax.jit, scan, cond, while_loop and convert, where it runs operation "
        "by operation, or write it without the operation.",
        operation=operation,
        source=source,
    )


def _summarize(error: BaseException) -> str:
    """Returns the line with the reason; AutoGraph and Keras put other lines before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0] == "in user code:":
        # AutoGraph prints the frames first, and the exception's own text last.
        tail = [line for line in lines if re.match(r"\w*(Error|Exception|Warning)\b.*: ", line)]
        return tail[-1].partition(": ")[2] if tail else lines[-1]
    if lines and lines[0].startswith("Exception encountered when calling "):
        lines = lines[1:] or lines  # Keras names the problem and the layer in the next lines
    text = lines[0] if lines else repr(error)
    text = re.sub(r"\{\{function_node \S+\}\} ?", "", text)
    return re.sub(r" ?\[Op:\w+\] ?(name:.*)?$", "", text).removeprefix("Failed getting HLO text: ")

"""verify(): a SavedModel in TensorFlow against the JAX function that it came from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import tensorflow as tf

from jax2tf_bridge._utils import as_integer, progress_bar, unknown_name_text
from jax2tf_bridge.errors import Argument, BridgeError, Message, ShapeError
from jax2tf_bridge.loading import LoadedFunction, load
from jax2tf_bridge.saved_model import (
    SERVING_DEFAULT,
    SIDECAR,
    SignatureEntry,
    needs_x64,
    read_serving_graph,
    read_sidecar,
)
from jax2tf_bridge.storage import as_path
from jax2tf_bridge.verifying._comparison import ComparedPair
from jax2tf_bridge.verifying._containers import KnownTypes
from jax2tf_bridge.verifying._runtimes import (
    RUNTIMES,
    RuntimeModel,
    check_names,
    open_runtime,
)
from jax2tf_bridge.verifying._verification import Latency, Verification

LATENCY_SIZES = tuple(2**i for i in range(8))
"""Sizes at which latency is measured by default."""


def verify(
    path: str | os.PathLike[str],
    function: Callable[..., Any],
    *,
    signature: str | None = None,
    samples: int = 5,
    gradients: int = 1,
    tolerance: float | None = None,
    seed: int = 0,
    params_like: Any = None,
    rounds: int = 0,
    batch_sizes: Sequence[int] = (),
    name: str | None = None,
    locate: bool = False,
    runtime: str = "tensorflow",
    model: str | os.PathLike[str] | None = None,
) -> Verification:
    """Compares a SavedModel of `save`, or a model converted from it, with its JAX function.

    Both run with the weights of the SavedModel, on random inputs of sizes that are drawn from the
    symbolic shapes. A preprocess and a postprocess are left out.

    Args:
      path: the SavedModel.
      function: the JAX function, with the same parameters as when it was saved; or the callable
        model, if the model was saved as the weights.
      signature: name of the signature; by default serving_default, or the only one.
      samples: number of sizes.
      gradients: number of these at which gradients are compared, too. They take most of the time.
      tolerance: largest allowed difference of floats, relative to the largest number of an array;
        by default 1e-12 for float64, 1e-4 for float32, 1e-2 for float16, 6e-2 for bfloat16.
      seed: the seed of sizes and values.
      params_like: an object of the same structure as the weights, needed if the SavedModel cannot
        rebuild their structure and no such object is in the function's module or scope.
      rounds: number of calls whose latency is measured at each size; 0 measures none.
      batch_sizes: sizes at which latency is measured; by default powers of 2 up to 128.
      name: what the report calls the function; by default "module:function".
      locate: whether to find the first line of the function whose value differs, if an output
        does. All values of the function, and all tensors of the model, are computed for it.
      runtime: what runs the model: "tensorflow", "litert", "onnx" (ONNX Runtime), "openvino" or
        "tfjs" (TensorFlow.js in Node.js). All but TensorFlow compare values only, no gradients.
      model: the model that the runtime runs, converted from the SavedModel: a .tflite file for
        "litert", an .onnx file for "onnx", the folder of `save_tfjs` or a JSON file in it for
        "tfjs". "openvino" takes an .xml or .onnx file, or by default runs the SavedModel.

    Returns:
      The differences. `ok` is True if all are within the tolerance; printing it shows the report.
      With `locate`, `location` is the first line that differs.

    Raises:
      BridgeError: the SavedModel was not written by `save`, has no such signature, or its results
        differ in shape from the function's; or it has values of 64 bits, which JAX has disabled;
        or the runtime is unknown, or cannot run the signature; or a number is too small.
      MissingDependencyError: the runtime is not installed; the text says how to install it.
      FileFormatError, FileNotFoundError: there is no SavedModel, or a damaged one.

    In a test::

        report = jax2tf_bridge.verify("predict/1", predict)
        assert report.ok, report

    Where a difference begins:

    >>> import tempfile
    >>> import numpy as np
    >>> from jax2tf_bridge import Signature, save
    >>> folder = tempfile.mkdtemp() + "/model"
    >>> _ = save(folder, Signature(lambda x: x * 2 + 1, args=[np.ones(3, np.float32)]))
    >>> report = verify(folder, lambda x: x * 3 + 1, gradients=0, locate=True)
    >>> report.ok, report.location.operation
    (False, 'mul')
    """
    folder, batch_sizes = as_path(path), [*map(int, batch_sizes)]
    _check_counts(samples, gradients, rounds, batch_sizes)
    check_runtime(runtime, model, rounds)
    # Raises for a damaged graph before TensorFlow loads it.
    for _, node in read_serving_graph(folder).graph.iterate_nodes():
        _ = node.calls
    contents = read_sidecar(folder)
    if contents is None:
        raise BridgeError(
            f"{folder} has no {SIDECAR}, a file that save() writes and verify needs for the "
            "arguments of the JAX function. For a SavedModel of another tool, compare "
            "jax2tf_bridge.load(...) with the function."
        )
    sidecar, portables = contents
    if needs_x64(portables) and not jax.config.read("jax_enable_x64"):
        raise BridgeError(
            f"{folder} has values of 64 bits. Call jax.config.update('jax_enable_x64', True) "
            "before verify, or set JAX_ENABLE_X64=1."
        )
    signature_name = choose_signature(signature, list(sidecar.signatures))
    against = name or _get_name(function)
    types = KnownTypes(function, against, params_like)
    saved, entry = load(folder), sidecar.signatures[signature_name]
    loaded = saved.functions[signature_name]
    assert isinstance(loaded, LoadedFunction)  # save() writes no other
    weight_names: Sequence[str] = ()
    if loaded.takes_params:
        names = {v.path: v.name for v in sidecar.variables}
        tree = loaded.portable.first_argument
        weight_names = [names[leaf] for leaf in tree.leaf_paths("params")]
    runtime_model = None
    if runtime != "tensorflow":
        runtime_model = _open_runtime(
            runtime, path if model is None else model, signature_name, entry
        )
        gradients = 0
    pair = ComparedPair(
        folder, saved.params, loaded, entry, function, weight_names, seed, types, runtime_model
    )
    sizes = pair.sampler.draw_sizes(samples)
    # Many gradients are zero at the smallest sizes, which come first.
    with_gradients = [*sizes[1:], sizes[0]][: gradients if entry.vjp_order else 0]
    try:
        differences = pair.compare(sizes, tolerance, with_gradients=with_gradients)
        location = pair.locate(differences, tolerance) if locate else None
        variable, latencies = _measure_latency(pair, rounds, batch_sizes) if rounds else (None, [])
    except BridgeError:
        raise
    except Exception as e:
        if pair.unknown_types and not type(e).__module__.startswith("tensorflow"):
            raise BridgeError(_format_unknown_types(against, pair, e)) from e
        raise
    return Verification(
        saved_model=str(folder),
        signature=signature_name,
        against=against,
        jax=jax.__version__,
        tensorflow=tf.__version__,
        samples=tuple(sizes),
        samples_with_gradients=tuple(with_gradients),
        differences=tuple(differences),
        has_gradients=entry.vjp_order > 0,
        is_processed=pair.is_processed,
        only_buckets=tuple(entry.only_buckets()),
        latency_over=variable,
        latencies=tuple(latencies),
        location=location,
        runtime=runtime,
        model=None if model is None else str(model),
        title=f"TensorFlow {tf.__version__}" if runtime_model is None else runtime_model.title,
    )


def _check_counts(samples: int, gradients: int, rounds: int, batch_sizes: Sequence[int]) -> None:
    counts = (("samples", samples, 1), ("gradients", gradients, 0), ("rounds", rounds, 0))
    for argument, count, least in counts:
        number = as_integer(count)
        if number is None or number < least:
            text = f" must be an integer of at least {least}. Got: {count!r}."
            raise BridgeError(Message(Argument(argument), text))
    if batch_sizes and not rounds:
        raise BridgeError(
            Message(
                Argument("batch_sizes"),
                " are the sizes at which latency is measured, and ",
                *(Argument("rounds", 0), " measures none. Pass ", Argument("rounds", 20), "."),
            )
        )


def check_runtime(runtime: str, model: str | os.PathLike[str] | None, rounds: int) -> None:
    """Raises an error for arguments that contradict each other.

    Raises:
      BridgeError: the runtime is unknown, or needs or takes no model, or latency is asked for.
    """
    if runtime not in RUNTIMES:
        text = unknown_name_text("runtime", runtime, list(RUNTIMES))
        raise BridgeError(Message(Argument("runtime"), f": verify has {text}"))
    if runtime == "tensorflow":
        if model is not None:
            raise BridgeError(
                Message(
                    "TensorFlow runs the SavedModel itself, so it takes no ",
                    Argument("model"),
                    ". Remove it, or name another ",
                    Argument("runtime"),
                    f": {', '.join(name for name in RUNTIMES if name != 'tensorflow')}.",
                )
            )
        return
    if model is None and runtime != "openvino":
        example = {"litert": "model.tflite", "onnx": "model.onnx", "tfjs": "web/model"}[runtime]
        raise BridgeError(
            Message(
                Argument("runtime", runtime),
                f" runs {RUNTIMES[runtime]}. Pass the one that was converted from the SavedModel: ",
                Argument("model", example),
                ".",
            )
        )
    if rounds:
        raise BridgeError(
            Message(
                "Latency is measured in TensorFlow only. Remove ",
                Argument("rounds"),
                " or ",
                Argument("runtime"),
                ".",
            )
        )


def _open_runtime(
    runtime: str, model: str | os.PathLike[str], signature: str, entry: SignatureEntry
) -> RuntimeModel:
    """Opens the model in its runtime.

    Raises:
      BridgeError: the model has other inputs or outputs, or the signature does more than compute.
    """
    if entry.updates:
        raise BridgeError(
            Message(
                f"The signature {signature} changes weights, which verify compares in TensorFlow "
                "only. Remove ",
                *(Argument("runtime"), "."),
            )
        )
    runtime_model = open_runtime(runtime, Path(model), signature)
    check_names(runtime_model, Path(model), list(entry.inputs), list(entry.outputs))
    return runtime_model


def choose_signature(name: str | None, names: Sequence[str]) -> str:
    """Returns the signature with this name; without a name, the default or the only one.

    Raises:
      BridgeError: no signature has this name, or there are several and no default.
    """
    if name is None:
        if SERVING_DEFAULT in names or len(names) == 1:
            return SERVING_DEFAULT if SERVING_DEFAULT in names else names[0]
        raise BridgeError(Message(Argument("signature"), f": name one of {', '.join(names)}"))
    if name not in names:
        text = unknown_name_text("signature", name, names)
        raise BridgeError(Message(Argument("signature"), f": the SavedModel has {text}"))
    return name


def _get_name(function: Callable[..., Any]) -> str:
    module = getattr(function, "__module__", None) or "__main__"
    return f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}"


def _measure_latency(
    pair: ComparedPair, rounds: int, batch_sizes: Sequence[int]
) -> tuple[str | None, list[Latency]]:
    """Measures at sizes of the first open variable, or once if no size is open."""
    sampler = pair.sampler
    if not sampler.variables:
        return None, [pair.measure_latency(None, {}, rounds)]
    variable = sampler.variables[0]
    samples = []
    for size in batch_sizes or LATENCY_SIZES:
        try:
            samples.append(sampler.complete_sizes({variable: size}))
        except ShapeError:
            if batch_sizes:
                raise
    # The constraints may forbid every power of two.
    samples = samples or sorted(
        sampler.draw_sizes(len(LATENCY_SIZES)), key=lambda sizes: sizes[variable]
    )
    by_size = {sizes[variable]: sizes for sizes in samples}
    latencies = []
    with progress_bar("measuring", len(by_size), "size") as advance:
        for size, sizes in by_size.items():
            latencies.append(pair.measure_latency(size, sizes, rounds))
            advance(1)
    return variable, latencies


def _format_unknown_types(against: str, pair: ComparedPair, error: Exception) -> Message:
    first_line = (str(error).strip().splitlines() or [""])[0]
    return Message(
        f"{against} was saved with objects of type {', '.join(pair.unknown_types[:3])}, "
        f"which verify found neither in {against.partition(':')[0]} nor in ",
        Argument("params_like"),
        f". The function failed with dicts instead: {type(error).__name__}: {first_line}. Pass ",
        Argument("params_like", "module:object", code="params_like=object"),
        ", an object of the same structure (its values do not matter).",
    )

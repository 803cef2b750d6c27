"""Loads the JAX functions and the weights of a SavedModel.

A SavedModel that save() wrote is loaded from its sidecar and its portable functions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.loading._arrays import make_input, make_jax_array
from jax2tf_bridge.loading._functions import (
    LoadedFunction,
    LoadedModel,
    LoadedSignature,
)
from jax2tf_bridge.loading._graph_models import load_graph_model
from jax2tf_bridge.portable import (
    Aval,
    Gradient,
    NoGradient,
    PortableFunction,
    StoredGradient,
)
from jax2tf_bridge.saved_model import (
    ArrayEntry,
    SavedVariables,
    Sidecar,
    SignatureEntry,
    read_serving_graph,
    read_sidecar,
    variable_name,
)
from jax2tf_bridge.storage import AnyPath, as_path

_NO_GRADIENT = "the SavedModel stores none: the function has none, or was saved with vjp_order=0"


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Reads a SavedModel back into JAX; TensorFlow is not needed.

    If `save` wrote the SavedModel, its functions take their original arguments, its weights have
    their original pytree structure, and its saved gradients work. `load` does not check the graph
    in such a SavedModel; `inspect` does. If another tool wrote it (jax2tf, Orbax), each signature
    that only calls JAX functions becomes a function. It takes a dict of its variables, and its
    inputs as keyword arguments. It has a gradient if it was saved with
    experimental_custom_gradients.

    Args:
      path: the folder that holds saved_model.pb, a local path or a URL ("gs://bucket/model").

    Returns:
      The model. Its functions run on every platform that JAX runs on, at every size that they were
      exported for.

    Raises:
      FileFormatError: the folder is not a SavedModel, holds no JAX function, or is damaged.
      DTypeError: the model has 64-bit weights, and jax_enable_x64 is off.
      OSError: the SavedModel does not exist, or cannot be read.

    >>> import tempfile, numpy as np
    >>> from jax2tf_bridge import Signature, save
    >>> dense = Signature(
    ...     lambda params, x: x @ params["w"],
    ...     args=[np.ones((4, 3), np.float32)],
    ...     polymorphic_shapes="(b, 3)",
    ... )
    >>> folder = tempfile.mkdtemp()
    >>> _ = save(folder, dense, params={"w": np.ones((3, 2), np.float32)})
    >>> model = load(folder)
    >>> model.serving_default(np.ones((1, 3), np.float32)).tolist()
    [[3.0, 3.0]]
    >>> model.signatures["serving_default"]
    <LoadedSignature serving_default(x: float32[b,3]) -> (output_0: float32[b,2])>
    """
    folder = as_path(path)
    graph = read_serving_graph(folder)
    bridge_model = read_sidecar(folder)
    if bridge_model is None:
        return load_graph_model(folder, graph)
    return _load_bridge_model(folder, *bridge_model)


def _load_bridge_model(
    folder: AnyPath, sidecar: Sidecar, portables: Mapping[str, PortableFunction]
) -> LoadedModel:
    variables = SavedVariables(folder)
    arrays, constants = _read_constants(sidecar, variables)
    functions = {
        name: LoadedFunction(
            name,
            _fill_constants(portables[name], arrays),
            takes_params=entry.takes_params,
            masks=[mask.path for mask in entry.masks.values()],
        )
        for name, entry in sidecar.signatures.items()
    }
    weights, params = _read_weights(folder, sidecar, functions, variables)
    signatures = {
        name: _make_signature(folder, function, sidecar.signatures[name], weights)
        for name, function in functions.items()
    }
    return LoadedModel(folder, functions, signatures, params, constants)


_ConstantKey = tuple[str, str, tuple[int, ...]]


def _read_constants(
    sidecar: Sidecar, variables: SavedVariables
) -> tuple[dict[_ConstantKey, bytes], dict[str, jax.Array]]:
    """Reads the captured arrays: bytes by (digest, dtype, shape), and JAX arrays by name."""
    data: dict[_ConstantKey, bytes] = {}
    arrays: dict[str, jax.Array] = {}
    for entry in sidecar.constants:
        aval = Aval(entry.shape, entry.dtype)
        content = variables.read_constant(entry.key, entry.digest, aval)
        data[entry.digest, entry.dtype, entry.shape] = content
        parts = entry.key.split("/")
        name = variable_name(parts[1]) if len(parts) > 1 else entry.key
        arrays[name] = make_jax_array(content, aval, f"The captured array {name}")
    return data, arrays


def _fill_constants(
    portable: PortableFunction, arrays: Mapping[_ConstantKey, bytes]
) -> PortableFunction:
    constants = tuple(
        # Arrays of higher-order gradients may be missing: the signature does not use them.
        replace(c, data=arrays.get((c.digest, c.aval.dtype, c.aval.known_op_shape)))
        for c in portable.lifted_constants
    )
    stored_vjp = portable.gradient.vjp
    gradient: Gradient = NoGradient(_NO_GRADIENT)
    if stored_vjp is not None:
        gradient = StoredGradient(_fill_constants(stored_vjp, arrays))
    return replace(portable, lifted_constants=constants, gradient=gradient)


def _read_weights(
    folder: AnyPath,
    sidecar: Sidecar,
    functions: Mapping[str, LoadedFunction],
    variables: SavedVariables,
) -> tuple[dict[str, jax.Array], Any]:
    """Reads the weights by path, and as the saved pytree (None without weights)."""
    avals: dict[str, Aval] = {}
    trees = []
    for name, function in functions.items():
        if function.takes_params:
            portable = function.portable
            if not portable.in_tree.children[0].children:
                raise FileFormatError(
                    f"{folder} is damaged: its signature {name} takes weights, but its function "
                    "takes no arguments. Save the model again.",
                    file=str(folder),
                )
            trees.append(portable.first_argument)
            avals |= dict(zip(trees[-1].leaf_paths("params"), portable.in_avals, strict=False))
    arrays = {}
    for entry in sidecar.variables:
        aval = avals.get(entry.path)
        if aval is not None:
            data = variables.read(entry.key, aval.op_dtype, aval.known_op_shape)
            arrays[entry.path] = make_jax_array(data, aval, f"The weight {entry.path}")
    missing = [path for path in avals if path not in arrays]
    if missing:
        raise FileFormatError(
            f"{folder} is damaged: it has no variable for {missing[0]}, which a function needs. "
            "Save the model again.",
            file=str(folder),
        )
    if not trees:
        return arrays, None
    return arrays, trees[0].unflatten(arrays[path] for path in trees[0].leaf_paths("params"))


def _make_signature(
    folder: AnyPath,
    function: LoadedFunction,
    entry: SignatureEntry,
    weights: Mapping[str, jax.Array],
) -> LoadedSignature:
    ins = {port.path: port.aval for port in function.portable.inputs}
    outs = {port.path: port.aval for port in function.portable.outputs}
    weight_arrays = []
    if function.takes_params:
        tree = function.portable.first_argument
        weight_arrays = [weights[path] for path in tree.leaf_paths("params")]
    input_paths = [path for path in list(ins)[len(weight_arrays) :] if path not in function.masks]
    names = {port.path: name for name, port in entry.inputs.items()}
    results = {port.path: name for name, port in entry.outputs.items()}
    if set(names) != set(input_paths) or {*results, *entry.updates} != set(outs):
        raise FileFormatError(
            f"{folder} is damaged: the inputs and outputs of its signature {function.name} are not "
            "the arguments and results of its function. Save the model again.",
            file=str(folder),
        )

    def call(inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        arguments = [
            make_input(inputs[name], ins[path], name)
            for path, name in ((path, names[path]) for path in input_paths)
        ]
        values = function.call_on_leaves(function.insert_masks([*weight_arrays, *arguments]))
        by_path = dict(zip(outs, values, strict=True))
        return {name: by_path[path] for path, name in results.items()}

    inputs = {names[path]: _format_type(entry.inputs[names[path]]) for path in input_paths}
    outputs = {name: _format_type(entry.outputs[name]) for name in results.values()}
    return LoadedSignature(function.name, inputs, outputs, call)


def _format_type(entry: ArrayEntry) -> str:
    shape = entry.shape.strip().removeprefix("(").removesuffix(")").rstrip(",")
    return f"{entry.dtype}[{shape.replace(' ', '')}]"

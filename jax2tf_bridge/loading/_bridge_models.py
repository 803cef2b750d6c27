"""Loads SavedModels that save() wrote, from their sidecar and portable functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.loading._arrays import SavedVariables, array, concrete, key_of
from jax2tf_bridge.loading._functions import (
    LoadedFunction,
    LoadedModel,
    LoadedSignature,
    path_avals,
)
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._portable_function import (
    Gradient,
    NoGradient,
    PortableFunction,
    StoredGradient,
)
from jax2tf_bridge.saved_model._sidecar import (
    ArrayEntry,
    ConstantEntry,
    Sidecar,
    SignatureEntry,
)
from jax2tf_bridge.saved_model._tensor_bundle import variable_name
from jax2tf_bridge.storage._paths import AnyPath

_NO_GRADIENT = "the SavedModel has none: the function has none, or it was saved with vjp_order=0"


def load_bridge_model(
    folder: AnyPath, sidecar: Sidecar, portables: Mapping[str, PortableFunction]
) -> LoadedModel:
    """Loads the model of a sidecar.

    Raises:
      FileFormatError: what belongs together does not, or is damaged.
      DTypeError: it has weights of 64 bits, which are switched off.
      OSError: it cannot be read.
    """
    variables = SavedVariables(folder)
    arrays, constants = _constants(sidecar, variables)
    filled = {name: _filled(portable, arrays) for name, portable in portables.items()}
    functions = {
        name: _function(name, portable, sidecar.signatures[name])
        for name, portable in filled.items()
    }
    weights, params = _weights(folder, sidecar, filled, variables)
    signatures = {
        name: _signature(folder, function, sidecar.signatures[name], weights)
        for name, function in functions.items()
    }
    return LoadedModel(folder, functions, signatures, params, constants)


def _function(name: str, portable: PortableFunction, entry: SignatureEntry) -> LoadedFunction:
    masks = [mask.path for mask in entry.masks.values()]
    return LoadedFunction(name, portable, takes_params=entry.takes_params, masks=masks)


_Key = tuple[str, str, tuple[int, ...]]


def _constants(
    sidecar: Sidecar, variables: SavedVariables
) -> tuple[dict[_Key, bytes], dict[str, jax.Array]]:
    """Reads the lifted constants: as bytes by what they are, and as arrays by name."""
    data: dict[_Key, bytes] = {}
    arrays: dict[str, jax.Array] = {}
    for entry in sidecar.constants:
        aval = Aval(entry.shape, entry.dtype)
        found = variables.constant(entry.key, entry.digest, aval)
        data[entry.digest, entry.dtype, entry.shape] = found
        arrays[_name(entry)] = array(found, aval, f"The captured array {_name(entry)}")
    return data, arrays


def _name(entry: ConstantEntry) -> str:
    parts = entry.key.split("/")
    return variable_name(parts[1]) if len(parts) > 1 else entry.key


def _filled(portable: PortableFunction, arrays: Mapping[_Key, bytes]) -> PortableFunction:
    """Gives a function and its VJPs the arrays that they captured."""
    constants = tuple(
        # Those that its signature does not use may be missing: gradients of higher orders.
        replace(c, data=arrays.get((c.digest, c.aval.dtype, concrete(c.aval))))
        for c in portable.lifted_constants
    )
    made = portable.gradient.made
    gradient: Gradient = NoGradient(_NO_GRADIENT)
    if made is not None:
        gradient = StoredGradient(_filled(made, arrays))
    return replace(portable, lifted_constants=constants, gradient=gradient)


def _weights(
    folder: AnyPath,
    sidecar: Sidecar,
    portables: Mapping[str, PortableFunction],
    variables: SavedVariables,
) -> tuple[dict[str, jax.Array], Any]:
    """Reads the weights: by path, and as the pytree that was saved, None if there are none."""
    avals: dict[str, Aval] = {}
    trees = {}
    for name, portable in portables.items():
        if sidecar.signatures[name].takes_params:
            if not portable.in_tree.children[0].children:
                raise FileFormatError(
                    f"{folder} is damaged: its signature {name} takes weights, and its function "
                    "takes no arguments. Save the model again.",
                    file=str(folder),
                )
            tree = portable.in_tree.children[0].children[0]
            trees[name] = tree
            avals |= dict(zip(tree.leaf_paths("params"), portable.in_avals, strict=False))
    arrays = {}
    for entry in sidecar.variables:
        aval = avals.get(entry.path)
        if aval is not None:
            data = variables.data(entry.key, aval.op_dtype, concrete(aval))
            arrays[entry.path] = array(data, aval, f"The weight {entry.path}")
    missing = [path for path in avals if path not in arrays]
    if missing:
        raise FileFormatError(
            f"{folder} is damaged: a function takes {missing[0]}, and there is no such variable. "
            "Save the model again.",
            file=str(folder),
        )
    if not trees:
        return arrays, None
    tree = next(iter(trees.values()))
    return arrays, tree.unflatten(arrays[path] for path in tree.leaf_paths("params"))


def _signature(
    folder: AnyPath,
    function: LoadedFunction,
    entry: SignatureEntry,
    weights: Mapping[str, jax.Array],
) -> LoadedSignature:
    ins, outs = path_avals(function.portable)
    own = []
    if function.takes_params:
        tree = function.portable.in_tree.children[0].children[0]
        own = [weights[path] for path in tree.leaf_paths("params")]
    needed = [path for path in list(ins)[len(own) :] if path not in function.masks]
    names = {each.path: name for name, each in entry.inputs.items()}
    results = {each.path: name for name, each in entry.outputs.items()}
    if set(names) != set(needed) or set(results) != set(outs):
        raise FileFormatError(
            f"{folder} is damaged: the inputs and outputs of its signature {function.name} are not "
            "the arguments and results of its function. Save the model again.",
            file=str(folder),
        )

    def call(given: Mapping[str, Any]) -> Mapping[str, Any]:
        rest = [key_of(given[names[path]], ins[path]) for path in needed]
        values = function.flat(function.with_masks([*own, *rest]))
        return {results[path]: value for path, value in zip(outs, values, strict=True)}

    inputs = {names[path]: _described(entry.inputs[names[path]]) for path in needed}
    outputs = {results[path]: _described(entry.outputs[results[path]]) for path in outs}
    return LoadedSignature(function.name, inputs, outputs, call)


def _described(entry: ArrayEntry) -> str:
    shape = entry.shape.strip().removeprefix("(").removesuffix(")").rstrip(",")
    return f"{entry.dtype}[{shape.replace(' ', '')}]"

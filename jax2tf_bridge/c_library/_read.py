"""Reads the interface of a C library from a SavedModel, and refuses what tfcompile cannot do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import BinaryIO

from jax2tf_bridge._utils import as_integer, unknown_name_text
from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.c_library._interface import (
    ALIGNMENT,
    Interface,
    LibraryArray,
    LibrarySignature,
    Weight,
    WeightsChecksum,
    check_identifiers,
    evaluate_shapes,
    format_sizes,
    has_c_type,
    list_variables,
    make_identifier,
    make_prefix,
    round_up,
)
from jax2tf_bridge.errors import (
    Argument,
    FileFormatError,
    Message,
    SavingError,
    ShapeError,
    UnsupportedByTargetError,
)
from jax2tf_bridge.portable import Aval, PortableFunction, array_size
from jax2tf_bridge.saved_model import (
    VARIABLES_FOLDER,
    Sidecar,
    SignatureEntry,
    TensorBundle,
    read_serving_graph,
    read_sidecar,
)
from jax2tf_bridge.storage import AnyPath
from shape_poly import parse_comparison

_WITHOUT_KERNEL = {"fft": "a Fourier transform", "outfeed": "an outfeed", "infeed": "an infeed"}
"""Operations of StableHLO for which tfcompile makes no program, and their names for people."""

_MAX_SIZE = 2**31 - 1
"""Maximum size of an axis; JAX's modules compute sizes in int32."""

Sizes = Sequence[Mapping[str, int]]


def read_interface(
    folder: AnyPath, name: str, signatures: Sequence[str] | None, sizes: Sizes
) -> Interface:
    """Reads signatures of a SavedModel, by default all, and checks that they can be compiled.

    Raises:
      FileFormatError: the folder is not a SavedModel that `save` wrote.
      SavingError: a signature does not exist, or the sizes or names do not fit.
      ShapeError: a function refuses sizes.
      UnsupportedByTargetError: tfcompile cannot compile a function.
    """
    contents = read_sidecar(folder)
    if contents is None:
        raise FileFormatError(
            f"{folder} is not a SavedModel that jax2tf_bridge.save wrote, so its functions are "
            "unknown. Save them with jax2tf_bridge.save.",
            file=str(folder),
        )
    sidecar, portables = contents
    names = [signatures] if isinstance(signatures, str) else dict.fromkeys(signatures or portables)
    for each in names:
        if each not in portables:
            raise SavingError(f"The model has {unknown_name_text('signature', each, portables)}")
    check_identifiers("signatures", [(n, make_identifier(n)) for n in names])
    _check_variables(portables, names, sizes)
    _check_processing(folder, sidecar, names)
    places = _Places(sidecar)
    read = tuple(
        _read_signature(name, n, portables[n], sidecar.signatures[n], sizes, places) for n in names
    )
    used = {leaf.key: leaf for s in read for leaf in s.leaves if isinstance(leaf, Weight)}
    return Interface(name, read, tuple(used.values()))


def write_weights(folder: AnyPath, interface: Interface, stream: BinaryIO) -> None:
    """Writes the file of the weights: their types, a checksum, and the values.

    Raises:
      FileFormatError: the SavedModel is damaged.
    """
    header, checksum = interface.weights_header(), WeightsChecksum()
    stream.write(header.ljust(ALIGNMENT, b"\0"))
    written = ALIGNMENT
    bundle = TensorBundle(folder / VARIABLES_FOLDER / "variables")
    for weight in interface.weights:
        content = bundle.read(weight.key)
        if len(content) != weight.size:
            raise FileFormatError(
                f"{bundle.index}: {weight.key} has {len(content)} bytes, expected {weight.size}. "
                "Save the model again.",
                file=str(bundle.index),
            )
        end = round_up(weight.size)
        piece = bytes(weight.offset - written) + content + bytes(end - weight.size)
        checksum.add(piece)
        stream.write(piece)
        written = weight.offset + end
    stream.seek(len(header))
    stream.write(checksum.digest())


class _Places:
    """Gives each variable of the SavedModel a place in the file of the weights."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._variables = {v.path: v.key for v in sidecar.variables}
        self._constants = {(c.digest, c.dtype, c.shape): c.key for c in sidecar.constants}
        self._known: dict[str, Weight] = {}
        self._end = ALIGNMENT

    def weight(self, path: str, aval: Aval) -> Weight:
        return self._place(path, self._variables[path], aval)

    def constant(self, name: str, digest: str, aval: Aval) -> Weight:
        shape = tuple(size for size in aval.op_shape if isinstance(size, int))
        return self._place(name, self._constants[digest, aval.dtype, shape], aval)

    def _place(self, name: str, key: str, aval: Aval) -> Weight:
        if key not in self._known:
            shape = tuple(size for size in aval.op_shape if isinstance(size, int))
            size = array_size(Aval(shape, aval.op_dtype))
            if isinstance(size, str):
                raise UnsupportedByTargetError(
                    f"tfcompile cannot take {name}: {size}.", operation=name, source=None
                )
            self._known[key] = Weight(name, aval.op_dtype, shape, key, self._end, size)
            self._end += round_up(size)
        return self._known[key]


def _read_signature(
    library: str,
    name: str,
    portable: PortableFunction,
    entry: SignatureEntry,
    all_sizes: Sizes,
    places: _Places,
) -> LibrarySignature:
    ports, out_ports = portable.inputs, portable.outputs
    _check_function(name, portable, entry)
    pads = entry.pad_numbers()
    names = {e.path: n for n, e in (*entry.inputs.items(), *entry.masks.items())}
    avals = {p.path: p.aval for p in ports}
    result_paths = [p.path for p in out_ports]
    inputs = [_make_array(n, avals[e.path], pads.get(n, 0)) for n, e in entry.inputs.items()]
    masks = [_make_array(n, avals[e.path], 1) for n, e in entry.masks.items()]
    results = tuple(result_paths.index(e.path) for e in entry.outputs.values())
    outputs = [
        _make_array(n, out_ports[i].aval, 0) for n, i in zip(entry.outputs, results, strict=True)
    ]
    for array in (*inputs, *outputs):
        if not has_c_type(array.dtype):
            raise UnsupportedByTargetError(
                f"The signature {name} has {array.name} of {array.dtype}, for which the C library "
                "has no type. Convert it to int8 or float32 in the function.",
                operation=array.dtype,
                source=None,
            )
    tree = portable.first_argument if entry.takes_params else None
    weights = [] if tree is None else list(tree.leaf_paths("params"))
    leaves: list[str | Weight] = [
        places.weight(weights[i], p.aval) if i < len(weights) else names[p.path]
        for i, p in enumerate(ports)
    ]
    leaves += [places.constant(c.name, c.digest, c.aval) for c in portable.lifted_constants]
    variables = list_variables([p.aval for p in ports])
    check_identifiers(
        f"inputs of {name}",
        [(v, make_identifier(v)) for v in variables]
        + [(f"{a.name} (an array)", a.identifier) for a in inputs],
    )
    check_identifiers(f"outputs of {name}", [(a.name, a.identifier) for a in outputs])
    sizes = _choose_sizes(name, portable, entry, variables, all_sizes)

    def work(values: Mapping[str, int]) -> int:
        return sum(map(math.prod, evaluate_shapes([*inputs, *masks, *outputs], values)))

    return LibrarySignature(
        name=name,
        prefix=make_prefix(library, name),
        portable=portable,
        leaves=tuple(leaves),
        variables=variables,
        padded=frozenset(entry.buckets or ()),
        inputs=tuple(inputs),
        masks=tuple(masks),
        outputs=tuple(outputs),
        results=results,
        sizes=tuple(sorted(sizes, key=lambda values: (work(values), tuple(values.values())))),
    )


def _make_array(name: str, aval: Aval, pad: complex) -> LibraryArray:
    return LibraryArray(name, make_identifier(name), aval.op_dtype, aval.op_shape, pad)


def _check_processing(folder: AnyPath, sidecar: Sidecar, names: Iterable[str]) -> None:
    """Refuses signatures that run more than the function."""
    graph = read_serving_graph(folder)
    methods = {} if graph.objects is None else graph.objects.methods
    for name in names:
        entry = sidecar.signatures[name]
        if name in graph.signatures:
            ports = graph.signatures[name]
            for arrays, others in ((entry.inputs, ports.inputs), (entry.outputs, ports.outputs)):
                for port in (*arrays.keys() - others.keys(), *others.keys() - arrays.keys()):
                    raise make_processing_error(name, f" around {port}")
        # `save` writes such a function beside signatures with `processing`.
        if f"unprocessed/{name}" in methods:
            raise make_processing_error(name)


def make_processing_error(name: str, place: str = "") -> UnsupportedByTargetError:
    """Makes the error for a signature with a preprocess or postprocess."""
    return UnsupportedByTargetError(
        f"The signature {name} has `processing`{place}, which runs in TensorFlow and cannot be "
        "compiled. Save a signature without it, and process arrays where you call the library.",
        operation="processing",
        source=None,
    )


def _check_function(name: str, portable: PortableFunction, entry: SignatureEntry) -> None:
    def refuse(what: str, advice: str, operation: str) -> UnsupportedByTargetError:
        return UnsupportedByTargetError(
            f"The signature {name} {what}, which tfcompile cannot compile. {advice}",
            operation=operation,
            source=None,
        )

    if entry.updates:
        raise refuse(
            f"assigns new values to {min(entry.updates.values())}",
            "Leave it out by naming the signatures to compile, or return the new weights as "
            "outputs of a function that takes them as inputs.",
            "AssignVariableOp",
        )
    if not entry.outputs:
        raise refuse("has no outputs", "Return an array.", "no outputs")
    if portable.graph_functions:
        raise refuse("calls TensorFlow graphs", "Write that part in JAX.", "call_tf")
    summary = read_summary(portable.module.data)
    for operation, text in _WITHOUT_KERNEL.items():
        if f"stablehlo.{operation}" in summary.operations or operation in summary.operations:
            raise refuse(f"has {text}", "Compute it without this operation.", operation)
    for call in summary.custom_calls:
        if call not in _CUSTOM_CALLS:
            raise refuse(f"has the custom call {call!r}", "Compute it without this call.", call)


_CUSTOM_CALLS = frozenset(
    {"Sharding", "shape_assertion", "stablehlo.dynamic_reduce_window"}
    | {"mhlo.topk", "mhlo.erf", "stablehlo.dynamic_rng_bit_generator", "stablehlo.dynamic_top_k"}
    | {"stablehlo.dynamic_approx_top_k", "annotate_device_placement"}
    | {"Qr", "Eigh", "LuDecomposition", "ProductOfElementaryHouseholderReflectors"}
)
"""Custom calls that XLA replaces before it makes programs."""


def _check_variables(
    portables: Mapping[str, PortableFunction], names: Iterable[str], sizes: Sizes
) -> None:
    known = {v for n in names for v in list_variables([p.aval for p in portables[n].inputs])}
    is_list = isinstance(sizes, Sequence)
    if not is_list or not all(isinstance(values, Mapping) for values in sizes):
        raise SavingError(
            "sizes must be a list with a mapping for each program, such as "
            f"[{{'b': 1}}, {{'b': 32}}]. Got: {sizes!r}."
        )
    for variable, size in (item for values in sizes for item in values.items()):
        number, problem = as_integer(size), None
        if variable not in known:
            names = f"Their open sizes: {', '.join(sorted(known))}."
            names = names if known else "They have no open sizes."
            problem = f": no signature has the size {variable}. {names}"
        elif number is None or not 1 <= number <= _MAX_SIZE:
            problem = f": {variable} must be an integer from 1 to {_MAX_SIZE}. Got: {size!r}."
        if problem is not None:
            raise SavingError(Message(Argument("sizes"), problem))


def _choose_sizes(
    name: str,
    portable: PortableFunction,
    entry: SignatureEntry,
    variables: Sequence[str],
    all_sizes: Sizes,
) -> list[dict[str, int]]:
    """Lists the sizes of one signature: those of the caller, or else its buckets."""
    if not variables:
        return [{}]
    buckets = entry.buckets or {}
    combinations = [
        {variable: int(values[variable]) for variable in variables}
        for values in all_sizes
        if not set(variables) - set(values)
    ]
    if not combinations and not set(variables) - set(buckets):
        combinations = [
            dict(zip(variables, each, strict=True))
            for each in product(*(buckets[v] for v in variables))
        ]
    if not combinations:
        missing = ", ".join(variables)
        example = dict.fromkeys(variables, 8)
        raise SavingError(
            Message(
                f"The signature {name} has open sizes ({missing}), and a program is compiled for "
                "fixed ones. Pass sizes for each program: ",
                Argument("sizes", format_sizes(example), f"sizes=[{example}]"),
            )
        )
    unique = list({format_sizes(values): values for values in combinations}.values())
    for values in unique:
        for condition in (*portable.constraints, *portable.requirements):
            if not parse_comparison(condition).holds(values):
                raise ShapeError(
                    f"The signature {name} cannot have {format_sizes(values)}: it needs "
                    f"{condition}. Pass other sizes."
                )
    return unique

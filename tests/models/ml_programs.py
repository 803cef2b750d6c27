"""Runs ML programs on any system: coremltools infers the value of each operation.

coremltools computes operations of constants by NumPy when it builds a program. Here each operation
of a package is built once more, with the values of its operands as constants. The operations for
which coremltools has no such inference are written here.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

_Array: TypeAlias = "np.ndarray[Any, Any]"


def run_package(path: Path, inputs: Mapping[str, _Array]) -> dict[str, _Array]:
    """Runs the program of a package; returns its outputs by name.

    Args:
      path: the package.
      inputs: the inputs by name.

    Raises:
      NotImplementedError: neither coremltools nor this module computes an operation.
    """
    ct = importlib.import_module("coremltools")
    proto = importlib.import_module("coremltools.converters.mil.frontend.milproto.load")
    model = ct.models.MLModel(str(path), skip_model_load=True)
    spec = model.get_spec()
    program = proto.load(spec, spec.specificationVersion, model.weights_dir)
    main = program.functions["main"]
    assert set(main.inputs) == set(inputs), f"{set(main.inputs)} are the inputs, not {set(inputs)}"
    with np.errstate(all="ignore"):
        results = _Interpreter(main.opset_version).run_block(main, inputs, {})
    return dict(zip((output.name for output in main.outputs), results, strict=True))


class _Interpreter:
    def __init__(self, opset: Any) -> None:
        mil = importlib.import_module("coremltools.converters.mil.mil")
        self._builder, self._function, self._opset = mil.Builder, mil.Function, opset

    def run_block(
        self, block: Any, arguments: Mapping[str, Any], outer: Mapping[str, Any]
    ) -> list[Any]:
        values = {**outer, **arguments}
        for operation in block.operations:
            results = self._run(operation, values)
            names = (output.name for output in operation.outputs)
            values.update(zip(names, results, strict=True))
        return [self._find(output, values) for output in block.outputs]

    def _find(self, variable: Any, values: Mapping[str, Any]) -> Any:
        if isinstance(variable, (tuple, list)):
            return [self._find(each, values) for each in variable]
        return values.get(variable.name, variable.val)

    def _run(self, operation: Any, values: Mapping[str, Any]) -> Sequence[Any]:
        kind = operation.op_type
        if kind == "const":
            return [operation.outputs[0].val]
        inputs = {
            name: self._find(variable, values)
            for name, variable in operation.inputs.items()
            if variable is not None and not name.startswith("_")
        }
        if kind == "while_loop":
            condition, body = operation.blocks
            return self._loop(condition, body, inputs["loop_vars"], values)
        if kind == "cond":
            block = operation.blocks[0 if inputs["pred"] else 1]
            return self.run_block(block, {}, values)
        if kind in _OPERATIONS:
            return [_OPERATIONS[kind](**inputs)]
        with self._function({}, opset_version=self._opset):
            made = getattr(self._builder, kind)(**inputs)
        listed = made if isinstance(made, (tuple, list)) else [made]
        if any(each.val is None for each in listed):
            raise NotImplementedError(f"coremltools infers no value of {kind} ({operation.name})")
        return [each.val for each in listed]

    def _loop(
        self, condition: Any, body: Any, state: Sequence[Any], outer: Mapping[str, Any]
    ) -> Sequence[Any]:
        def call(block: Any) -> list[Any]:
            names = (variable.name for variable in block.inputs)
            return self.run_block(block, dict(zip(names, state, strict=True)), outer)

        while call(condition)[0]:
            state = call(body)
        return state


# Operations for which coremltools infers no values, with the defaults of MIL.


def _ones(rank: int, numbers: Sequence[int] | None) -> list[int]:
    return [1] * rank if numbers is None else [int(number) for number in numbers]


def _list_pads(
    kind: str,
    pad: Sequence[int] | None,
    sizes: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int],
) -> list[tuple[int, int]]:
    """Returns the padding before and after each spatial axis."""
    if kind == "custom":
        assert pad is not None, "custom padding has numbers"
        return [(int(low), int(high)) for low, high in zip(pad[::2], pad[1::2], strict=True)]
    if kind == "valid":
        return [(0, 0)] * len(sizes)
    pads = []
    for size, span, stride in zip(sizes, spans, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + span - size, 0)
        half = total // 2 if kind == "same" else total - total // 2
        pads.append((half, total - half))
    return pads


def _list_windows(
    x: _Array,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    pads: tuple[str, Sequence[int] | None],
    filler: float,
) -> _Array:
    """Returns the windows of x [batch, channels, *places, *kernel]."""
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    amounts = _list_pads(*pads, x.shape[2:], spans, strides)
    padded = np.pad(x, [(0, 0), (0, 0), *amounts], constant_values=filler)
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axes)
    steps = (slice(None, None, step) for step in (*strides, *dilations))
    return windows[(slice(None), slice(None), *steps)]


def _add_bias(x: _Array, bias: _Array | None) -> _Array:
    return x if bias is None else x + bias.reshape(-1, *[1] * (x.ndim - 2))


def _convolve(
    x: _Array,
    weight: _Array,
    bias: _Array | None = None,
    strides: Any = None,
    pad_type: str = "valid",
    pad: Any = None,
    dilations: Any = None,
    groups: int = 1,
) -> _Array:
    rank = x.ndim - 2
    steps = _ones(rank, strides), _ones(rank, dilations)
    windows = _list_windows(x, weight.shape[2:], *steps, (pad_type, pad), 0)
    inner = [1, *range(2 + rank, 2 + 2 * rank)], [1, *range(2, 2 + rank)]
    pairs = zip(np.split(windows, groups, 1), np.split(weight, groups), strict=True)
    # NumPy has no fast product of float16.
    wide = np.float32 if x.dtype == np.float16 else x.dtype
    parts = [
        np.tensordot(group.astype(wide), kernel.astype(wide), inner).astype(x.dtype)
        for group, kernel in pairs
    ]
    return _add_bias(np.moveaxis(np.concatenate(parts, -1), -1, 1), bias)


def _convolve_transposed(
    x: _Array,
    weight: _Array,
    bias: _Array | None = None,
    strides: Any = None,
    pad_type: str = "valid",
    pad: Any = None,
    output_shape: Any = None,
    dilations: Any = None,
    groups: int = 1,
) -> _Array:
    assert groups == 1, "no model has transposed convolutions of groups"
    rank, sizes, kernel = x.ndim - 2, x.shape[2:], weight.shape[2:]
    steps, spacing = _ones(rank, strides), _ones(rank, dilations)
    full = [
        (size - 1) * step + (width - 1) * space + 1
        for size, step, width, space in zip(sizes, steps, kernel, spacing, strict=True)
    ]
    result = np.zeros((len(x), weight.shape[1], *full), x.dtype)
    for place in np.ndindex(*kernel):
        added = np.tensordot(x, weight[(slice(None), slice(None), *place)], ([1], [0]))
        at = (
            slice(i * space, i * space + (size - 1) * step + 1, step)
            for i, space, size, step in zip(place, spacing, sizes, steps, strict=True)
        )
        result[(slice(None), slice(None), *at)] += np.moveaxis(added, -1, 1)
    wanted = None if output_shape is None else [int(size) for size in output_shape[-rank:]]
    if pad_type == "same":
        wanted = wanted or [size * step for size, step in zip(sizes, steps, strict=True)]
        excess = [size - kept for size, kept in zip(full, wanted, strict=True)]
        pads = [(number // 2, number - number // 2) for number in excess]
    else:
        pads = _list_pads(pad_type, pad, full, kernel, steps)
    kept = (slice(low, size - high) for (low, high), size in zip(pads, full, strict=True))
    result = result[(slice(None), slice(None), *kept)]
    assert wanted is None or list(result.shape[2:]) == wanted, f"{result.shape}, not {wanted}"
    return _add_bias(result, bias)


def _pool(reduce: Callable[..., _Array], filler: float) -> Callable[..., _Array]:
    def call(
        x: _Array,
        kernel_sizes: Any,
        strides: Any = None,
        pad_type: str = "valid",
        pad: Any = None,
        ceil_mode: bool = False,
        exclude_padding_from_average: bool = False,
    ) -> _Array:
        assert not ceil_mode, "TensorFlow rounds sizes down"
        assert not exclude_padding_from_average, "the bridge pads for itself"
        rank = x.ndim - 2
        steps = _ones(rank, strides), [1] * rank
        windows = _list_windows(x, list(kernel_sizes), *steps, (pad_type, pad), filler)
        return reduce(windows, tuple(range(2 + rank, 2 + 2 * rank)))

    return call


def _gather_nd(
    x: _Array, indices: _Array, batch_dims: int = 0, validate_indices: bool = False
) -> _Array:
    assert batch_dims == 0, "no model gathers in batches"
    result: _Array = x[tuple(np.moveaxis(indices, -1, 0))]
    return result


_SCATTERS = MappingProxyType({"add": np.add, "max": np.maximum, "min": np.minimum})


def _scatter_nd(
    data: _Array,
    indices: _Array,
    updates: _Array,
    mode: str = "add",
    validate_indices: bool = False,
) -> _Array:
    result, places = data.copy(), tuple(np.moveaxis(indices, -1, 0))
    if mode == "update":
        result[places] = updates
    else:
        _SCATTERS[mode].at(result, places, updates)
    return result


def _select(cond: _Array, a: _Array, b: _Array) -> _Array:
    return np.where(cond, a, b)


_OPERATIONS: Mapping[str, Callable[..., _Array]] = MappingProxyType(
    {
        "avg_pool": _pool(np.mean, 0),
        "conv": _convolve,
        "conv_transpose": _convolve_transposed,
        "gather_nd": _gather_nd,
        "max_pool": _pool(np.max, -np.inf),
        "scatter_nd": _scatter_nd,
        "select": _select,
    }
)

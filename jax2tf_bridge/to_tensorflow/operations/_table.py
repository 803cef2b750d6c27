"""Table of the emitters of all StableHLO operations."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from jax2tf_bridge.to_tensorflow.operations import (
    _batch_norm,
    _collectives,
    _control_flow,
    _convolution,
    _custom_calls,
    _dot_general,
    _dynamic_slices,
    _elementwise,
    _fft,
    _functions,
    _fusions,
    _gather,
    _linalg,
    _random,
    _reductions,
    _scatter,
    _shapes,
    _sorting,
    _windows,
)
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter

EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {
        name: emitter
        for module in (
            _batch_norm,
            _collectives,
            _control_flow,
            _convolution,
            _custom_calls,
            _dot_general,
            _dynamic_slices,
            _elementwise,
            _fft,
            _functions,
            _fusions,
            _gather,
            _linalg,
            _random,
            _reductions,
            _scatter,
            _shapes,
            _sorting,
            _windows,
        )
        for name, emitter in module.EMITTERS.items()
    }
)

FOR_CONVERTERS: Mapping[str, Emitter] = MappingProxyType(
    {**EMITTERS, **_elementwise.FOR_CONVERTERS}
)
"""Emitters for tf2onnx and OpenVINO. LiteRT uses `EMITTERS`."""

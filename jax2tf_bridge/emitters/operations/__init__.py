"""The operations of StableHLO: a module for each kind, and the table of their emitters."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from jax2tf_bridge.emitters._scope import Emitter, OperationEmitter
from jax2tf_bridge.emitters.operations import (  # noqa: F401
    _calls,
    _control_flow,
    _convolution,
    _dot_general,
    _dynamic_slices,
    _elementwise,
    _fourier,
    _gather,
    _layers,
    _linalg,
    _random,
    _reductions,
    _scatter,
    _shapes,
    _sorting,
    _special_functions,
    _windows,
)

__all__ = ["EMITTERS", "OPERATION_EMITTERS"]

# The modules come from globals(), so each is named only in the import.
OPERATION_EMITTERS = tuple(
    each
    for module in tuple(globals().values())
    if isinstance(module, ModuleType)
    for value in vars(module).values()
    for each in (value if isinstance(value, tuple) else (value,))
    if isinstance(each, OperationEmitter)
)
"""The emitters of the imported modules, alone or in tuples."""

EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {name: each for each in OPERATION_EMITTERS for name in each.names}
)
"""The emitters by the names of operations, composites and custom calls."""

"""Reads StableHLO portable artifacts, which are MLIR bytecode, without MLIR."""

from jax2tf_bridge.portable.bytecode._summary import (
    Constant,
    ModuleSummary,
    read_main_types,
    read_module,
)

__all__ = ["Constant", "ModuleSummary", "read_main_types", "read_module"]

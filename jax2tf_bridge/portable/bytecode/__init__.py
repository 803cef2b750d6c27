"""Reads StableHLO portable artifacts, which are MLIR bytecode, without MLIR."""

from jax2tf_bridge.portable.bytecode._layout import read_layout
from jax2tf_bridge.portable.bytecode._program import (
    Attribute,
    Block,
    DenseElements,
    Function,
    Operation,
    OtherType,
    Program,
    TensorType,
    Unsupported,
    Value,
    ValueType,
)
from jax2tf_bridge.portable.bytecode._read_program import read_program
from jax2tf_bridge.portable.bytecode._summary import (
    ModuleConstant,
    ModuleSummary,
    read_main_types,
    read_summary,
)

__all__ = [
    "Attribute",
    "Block",
    "DenseElements",
    "Function",
    "ModuleConstant",
    "ModuleSummary",
    "Operation",
    "OtherType",
    "Program",
    "TensorType",
    "Unsupported",
    "Value",
    "ValueType",
    "read_layout",
    "read_main_types",
    "read_program",
    "read_summary",
]

"""Reads StableHLO portable artifacts, which are MLIR bytecode, without MLIR."""

from jax2tf_bridge.bytecode._layout import read_layout
from jax2tf_bridge.bytecode._program import (
    STOP_GRADIENT,
    Attribute,
    Block,
    DenseElements,
    Function,
    InlinedCall,
    Operation,
    OtherType,
    Program,
    TensorType,
    Unsupported,
    Value,
    ValueType,
)
from jax2tf_bridge.bytecode._read_program import read_program
from jax2tf_bridge.bytecode._summary import (
    ModuleConstant,
    ModuleSummary,
    Version,
    read_main_types,
    read_summary,
    version_text,
)

__all__ = [
    "STOP_GRADIENT",
    "Attribute",
    "Block",
    "DenseElements",
    "Function",
    "InlinedCall",
    "ModuleConstant",
    "ModuleSummary",
    "Operation",
    "OtherType",
    "Program",
    "TensorType",
    "Unsupported",
    "Value",
    "ValueType",
    "Version",
    "read_layout",
    "read_main_types",
    "read_program",
    "read_summary",
    "version_text",
]

"""Reads StableHLO portable artifacts, which are MLIR bytecode, without MLIR."""

from jax2tf_bridge.bytecode._layout import read_layout as read_layout
from jax2tf_bridge.bytecode._program import STOP_GRADIENT as STOP_GRADIENT
from jax2tf_bridge.bytecode._program import Attribute as Attribute
from jax2tf_bridge.bytecode._program import Block as Block
from jax2tf_bridge.bytecode._program import DenseElements as DenseElements
from jax2tf_bridge.bytecode._program import Function as Function
from jax2tf_bridge.bytecode._program import InlinedCall as InlinedCall
from jax2tf_bridge.bytecode._program import Operation as Operation
from jax2tf_bridge.bytecode._program import OtherType as OtherType
from jax2tf_bridge.bytecode._program import Program as Program
from jax2tf_bridge.bytecode._program import TensorType as TensorType
from jax2tf_bridge.bytecode._program import Unsupported as Unsupported
from jax2tf_bridge.bytecode._program import Value as Value
from jax2tf_bridge.bytecode._program import ValueType as ValueType
from jax2tf_bridge.bytecode._read_program import read_program as read_program
from jax2tf_bridge.bytecode._summary import ModuleConstant as ModuleConstant
from jax2tf_bridge.bytecode._summary import ModuleSummary as ModuleSummary
from jax2tf_bridge.bytecode._summary import Version as Version
from jax2tf_bridge.bytecode._summary import read_main_types as read_main_types
from jax2tf_bridge.bytecode._summary import read_stablehlo_version as read_stablehlo_version
from jax2tf_bridge.bytecode._summary import read_summary as read_summary
from jax2tf_bridge.bytecode._summary import version_text as version_text

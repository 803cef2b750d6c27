"""Converts StableHLO to a graph of operations of TensorFlow or another runtime."""

from jax2tf_bridge.emitters._call_operations import make_operations as make_operations
from jax2tf_bridge.emitters._call_operations import read as read
from jax2tf_bridge.emitters._call_operations import rewrite_program as rewrite_program
from jax2tf_bridge.emitters._ops import Builder as Builder
from jax2tf_bridge.emitters._ops import NoOperationError as NoOperationError
from jax2tf_bridge.emitters._ops import building as building
from jax2tf_bridge.emitters._ops import find_source_line as find_source_line
from jax2tf_bridge.emitters._ops import make_line_scope as make_line_scope
from jax2tf_bridge.emitters._sizes import SizeAlgebra as SizeAlgebra
from jax2tf_bridge.emitters._sizes import largest_constant as largest_constant
from jax2tf_bridge.emitters.formulas.converter_forms import copy as copy
from jax2tf_bridge.emitters.formulas.converter_forms import expm1 as expm1
from jax2tf_bridge.emitters.formulas.converter_forms import lgamma as lgamma
from jax2tf_bridge.emitters.formulas.converter_forms import log1p as log1p
from jax2tf_bridge.emitters.formulas.converter_forms import next_after as next_after

"""Symbolic shapes: specifications of arguments, and JAX's questions about sizes during tracing."""

from jax2tf_bridge.from_jax.shapes._assumptions import RowWise as RowWise
from jax2tf_bridge.from_jax.shapes._assumptions import SizeAssumptions as SizeAssumptions
from jax2tf_bridge.from_jax.shapes._assumptions import TracedFunction as TracedFunction
from jax2tf_bridge.from_jax.shapes._auto_shapes import TracedTrial as TracedTrial
from jax2tf_bridge.from_jax.shapes._auto_shapes import choose_auto_shapes as choose_auto_shapes
from jax2tf_bridge.from_jax.shapes._entries import entry_text as entry_text
from jax2tf_bridge.from_jax.shapes._entries import is_entry as is_entry
from jax2tf_bridge.from_jax.shapes._inference import InferredTrace as InferredTrace
from jax2tf_bridge.from_jax.shapes._inference import (
    add_reshape_requirements as add_reshape_requirements,
)
from jax2tf_bridge.from_jax.shapes._inference import (
    check_requirements_allowed as check_requirements_allowed,
)
from jax2tf_bridge.from_jax.shapes._inference import check_sizes_stay_open as check_sizes_stay_open
from jax2tf_bridge.from_jax.shapes._inference import infer as infer
from jax2tf_bridge.from_jax.shapes._inference import infer_and_lower as infer_and_lower
from jax2tf_bridge.from_jax.shapes._options import AUTO_CONSTRAINTS as AUTO_CONSTRAINTS
from jax2tf_bridge.from_jax.shapes._options import AUTO_SHAPES as AUTO_SHAPES
from jax2tf_bridge.from_jax.shapes._options import CONSTRAINTS as CONSTRAINTS
from jax2tf_bridge.from_jax.shapes._options import POLYMORPHIC as POLYMORPHIC
from jax2tf_bridge.from_jax.shapes._options import SHAPES as SHAPES
from jax2tf_bridge.from_jax.shapes._options import SYMBOLIC as SYMBOLIC
from jax2tf_bridge.from_jax.shapes._options import SizeOptions as SizeOptions
from jax2tf_bridge.from_jax.shapes._options import SizeWords as SizeWords
from jax2tf_bridge.from_jax.shapes._options import make_size_options as make_size_options
from jax2tf_bridge.from_jax.shapes._specs import ArraySpec as ArraySpec
from jax2tf_bridge.from_jax.shapes._specs import AutoSpec as AutoSpec
from jax2tf_bridge.from_jax.shapes._specs import OpenSpec as OpenSpec
from jax2tf_bridge.from_jax.shapes._specs import Specs as Specs
from jax2tf_bridge.from_jax.shapes._specs import (
    explain_shape_as_example as explain_shape_as_example,
)
from jax2tf_bridge.from_jax.shapes._specs import symbolic_specs as symbolic_specs

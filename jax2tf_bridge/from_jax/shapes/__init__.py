"""Symbolic shapes: specifications of arguments, and JAX's questions about sizes during tracing."""

from jax2tf_bridge.from_jax.shapes._assumptions import RowWise, SizeAssumptions, TracedFunction
from jax2tf_bridge.from_jax.shapes._auto_shapes import TracedTrial, choose_auto_shapes
from jax2tf_bridge.from_jax.shapes._entries import entry_text, is_entry
from jax2tf_bridge.from_jax.shapes._inference import (
    InferredTrace,
    add_reshape_requirements,
    check_requirements_allowed,
    check_sizes_stay_open,
    infer,
    infer_and_lower,
)
from jax2tf_bridge.from_jax.shapes._options import (
    AUTO_CONSTRAINTS,
    AUTO_SHAPES,
    CONSTRAINTS,
    POLYMORPHIC,
    SHAPES,
    SYMBOLIC,
    SizeOptions,
    SizeWords,
    make_size_options,
)
from jax2tf_bridge.from_jax.shapes._specs import (
    ArraySpec,
    AutoSpec,
    OpenSpec,
    Specs,
    explain_shape_as_example,
    symbolic_specs,
)

__all__ = [
    "AUTO_CONSTRAINTS",
    "AUTO_SHAPES",
    "CONSTRAINTS",
    "POLYMORPHIC",
    "SHAPES",
    "SYMBOLIC",
    "ArraySpec",
    "AutoSpec",
    "InferredTrace",
    "OpenSpec",
    "RowWise",
    "SizeAssumptions",
    "SizeOptions",
    "SizeWords",
    "Specs",
    "TracedFunction",
    "TracedTrial",
    "add_reshape_requirements",
    "check_requirements_allowed",
    "check_sizes_stay_open",
    "choose_auto_shapes",
    "entry_text",
    "explain_shape_as_example",
    "infer",
    "infer_and_lower",
    "is_entry",
    "make_size_options",
    "symbolic_specs",
]

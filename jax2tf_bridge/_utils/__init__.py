"""Small helpers that know nothing of the bridge."""

from jax2tf_bridge._utils._json_values import JsonProblem, JsonValue
from jax2tf_bridge._utils._plot_axes import TIME_TICKS, PlotAxis, nearest_ticks
from jax2tf_bridge._utils._private_names import SeamName
from jax2tf_bridge._utils._running import once_per_object, progress_bar, reraise_interrupts
from jax2tf_bridge._utils._texts import (
    array_type_text,
    as_integer,
    did_you_mean,
    in_units,
    number_of,
    number_text,
    one_line,
    printable,
    some,
    unknown_name_text,
)

__all__ = [
    "TIME_TICKS",
    "JsonProblem",
    "JsonValue",
    "PlotAxis",
    "SeamName",
    "array_type_text",
    "as_integer",
    "did_you_mean",
    "in_units",
    "nearest_ticks",
    "number_of",
    "number_text",
    "once_per_object",
    "one_line",
    "printable",
    "progress_bar",
    "reraise_interrupts",
    "some",
    "unknown_name_text",
]

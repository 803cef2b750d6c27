"""Small helpers that know nothing of the bridge."""

from jax2tf_bridge._utils._items_by_name import ItemsByName as ItemsByName
from jax2tf_bridge._utils._items_by_name import name_items as name_items
from jax2tf_bridge._utils._json_values import JsonProblem as JsonProblem
from jax2tf_bridge._utils._json_values import JsonValue as JsonValue
from jax2tf_bridge._utils._plots import PlotLine as PlotLine
from jax2tf_bridge._utils._plots import plot_latency as plot_latency
from jax2tf_bridge._utils._private_names import SeamName as SeamName
from jax2tf_bridge._utils._running import once_per_object as once_per_object
from jax2tf_bridge._utils._running import progress_bar as progress_bar
from jax2tf_bridge._utils._running import reraise_interrupts as reraise_interrupts
from jax2tf_bridge._utils._texts import array_type_text as array_type_text
from jax2tf_bridge._utils._texts import as_integer as as_integer
from jax2tf_bridge._utils._texts import did_you_mean as did_you_mean
from jax2tf_bridge._utils._texts import format_bytes as format_bytes
from jax2tf_bridge._utils._texts import join_names as join_names
from jax2tf_bridge._utils._texts import number_text as number_text
from jax2tf_bridge._utils._texts import one_line as one_line
from jax2tf_bridge._utils._texts import printable as printable
from jax2tf_bridge._utils._texts import read_number as read_number
from jax2tf_bridge._utils._texts import unknown_name_text as unknown_name_text

"""Exports JAX functions as portable functions. Never imports tensorflow."""

from jax2tf_bridge.errors import name_missing_package

with name_missing_package("Exporting or retargeting a JAX function"):
    import jax as _jax  # noqa: F401

from pathlib import Path

from jax.extend import source_info_util

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._export import PreparedExport, export
from jax2tf_bridge.from_jax._export import call_text as call_text
from jax2tf_bridge.from_jax._export import eval_polymorphic_shape as eval_polymorphic_shape
from jax2tf_bridge.from_jax._exported import from_exported, to_exported
from jax2tf_bridge.from_jax._exported import keep_exported as keep_exported
from jax2tf_bridge.from_jax._jax_compat import ir as ir
from jax2tf_bridge.from_jax._retarget import retarget
from jax2tf_bridge.from_jax._retarget import retarget_call as retarget_call
from jax2tf_bridge.from_jax._rounded_runs import get_quick_options as get_quick_options
from jax2tf_bridge.from_jax._rounded_runs import run_rounded as run_rounded
from jax2tf_bridge.from_jax._symbols import dim_from_jax as dim_from_jax
from jax2tf_bridge.from_jax._symbols import dim_to_jax as dim_to_jax
from jax2tf_bridge.from_jax._symbols import scope_from_jax as scope_from_jax
from jax2tf_bridge.from_jax.lowering import make_export_options as make_export_options

# Source lines in messages should be the user's, not this package's.
source_info_util.register_exclusion(str(Path(__file__).parent.parent))

# The seam to JAX's private names, for packages on higher floors.
jax_compat = _jax_compat

__all__ = ["PreparedExport", "export", "from_exported", "retarget", "to_exported"]

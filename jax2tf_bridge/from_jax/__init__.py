"""Exports JAX functions as portable functions. Never imports tensorflow."""

from jax2tf_bridge.errors import MissingDependencyError

try:
    import jax as _jax  # noqa: F401
except ModuleNotFoundError as e:
    if e.name != "jax":
        raise
    raise MissingDependencyError("JAX", "jax", "Exporting or retargeting a JAX function") from e

from pathlib import Path

from jax.extend import source_info_util

from jax2tf_bridge.from_jax._export import PreparedExport, export
from jax2tf_bridge.from_jax._exported import from_exported, to_exported
from jax2tf_bridge.from_jax.stablehlo._retarget import retarget

# Source lines in messages are the user's, not those of this package.
source_info_util.register_exclusion(str(Path(__file__).parent.parent))

__all__ = ["PreparedExport", "export", "from_exported", "retarget", "to_exported"]

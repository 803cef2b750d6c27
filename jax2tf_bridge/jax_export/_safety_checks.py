"""DisabledSafetyCheck: the class of JAX, with the additional checks of the bridge."""

from __future__ import annotations

from jax import export as jax_export

import jax2tf_bridge.portable as portable


class DisabledSafetyCheck(jax_export.DisabledSafetyCheck):
    """A safety check to skip. It can be passed to JAX as well.

    >>> DisabledSafetyCheck.custom_call("my_kernel").is_custom_call()
    'my_kernel'
    >>> DisabledSafetyCheck.shardings(), DisabledSafetyCheck.platform()
    (shardings, platform)
    """

    @classmethod
    def shardings(cls) -> DisabledSafetyCheck:
        """Allows TensorFlow to run a sharded function on a single device.

        The results are the same. JAX does not have this check, and its file format omits it.
        """
        return cls(str(portable.DisabledSafetyCheck.shardings()))

    @classmethod
    def debug_effects(cls) -> DisabledSafetyCheck:
        """Removes calls of jax.debug (print, callback, breakpoint) from an export.

        They do not affect the results. JAX does not have this check, and its file format omits it.
        """
        return cls(str(portable.DisabledSafetyCheck.debug_effects()))

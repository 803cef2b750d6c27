"""DisabledSafetyCheck: JAX's own, with the checks that the bridge alone has."""

from __future__ import annotations

from jax import export as jax_export

import jax2tf_bridge.portable._safety_checks as of_the_bridge


class DisabledSafetyCheck(jax_export.DisabledSafetyCheck):
    """A safety check to skip, in JAX's own type.

    >>> DisabledSafetyCheck.custom_call("my_kernel").is_custom_call()
    'my_kernel'
    >>> DisabledSafetyCheck.shardings(), DisabledSafetyCheck.platform()
    (shardings, platform)
    """

    @classmethod
    def shardings(cls) -> DisabledSafetyCheck:
        """Lets TensorFlow run a sharded function as a whole on one device.

        The values are the same. JAX has no such check, and its files drop it.
        """
        return cls(str(of_the_bridge.DisabledSafetyCheck.shardings()))

    @classmethod
    def debug_effects(cls) -> DisabledSafetyCheck:
        """Leaves calls of jax.debug (print, callback, breakpoint) out of an export.

        They give the function no values. JAX has no such check, and its files drop it.
        """
        return cls(str(of_the_bridge.DisabledSafetyCheck.debug_effects()))

"""The TensorFlow releases and runtimes that a function can run on, and what each can execute.

`__all__` has the public names. The other names are for the other packages of the bridge.

>>> from jax2tf_bridge.targets import Target
>>> Target.tensorflow("2.17").stablehlo_versions
((1, 1, 1),)
"""

from jax2tf_bridge.targets._target import NO_XLA as NO_XLA
from jax2tf_bridge.targets._target import PLATFORMS as PLATFORMS
from jax2tf_bridge.targets._target import TENSORFLOW_RELEASES as TENSORFLOW_RELEASES
from jax2tf_bridge.targets._target import Target
from jax2tf_bridge.targets._target import as_target as as_target
from jax2tf_bridge.targets._target import canonicalize_platforms as canonicalize_platforms
from jax2tf_bridge.targets._target import check_expressible as check_expressible
from jax2tf_bridge.targets._target import find_inexpressible as find_inexpressible
from jax2tf_bridge.targets._target import find_releases as find_releases
from jax2tf_bridge.targets._target import installed_versions as installed_versions
from jax2tf_bridge.targets._target import iterate_inexpressible as iterate_inexpressible

__all__ = ["Target"]

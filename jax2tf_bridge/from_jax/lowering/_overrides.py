"""The lowering rules that the bridge puts in place of JAX's own."""

import functools
from typing import Any

from jax2tf_bridge.from_jax._jax_compat_lowering import rules_possible
from jax2tf_bridge.from_jax.linalg._rules import linalg_rules
from jax2tf_bridge.from_jax.lowering._accuracy import RESULT_ACCURACY_SINCE, accuracy_rules
from jax2tf_bridge.from_jax.lowering._bitcast import bitcast_rules
from jax2tf_bridge.from_jax.lowering._collectives import collective_rules
from jax2tf_bridge.from_jax.lowering._composites import composite_rules
from jax2tf_bridge.from_jax.lowering._convolutions import convolution_rules
from jax2tf_bridge.from_jax.lowering._indexing import BATCHING_DIMS_SINCE, indexing_rules
from jax2tf_bridge.from_jax.lowering._ragged import ragged_rules


@functools.lru_cache(maxsize=64)
def lowering_overrides(
    platforms: tuple[str, ...], stablehlo_version: tuple[int, int, int]
) -> tuple[tuple[Any, Any], ...]:
    """(primitive, lowering rule) pairs for jax.export.export's `_override_lowering_rules`.

    The rules themselves look at the platform that they lower for. On "cpu", "cuda" and "rocm"
    the decompositions become StableHLO and the custom calls that XLA expands everywhere (Qr,
    Eigh, ProductOfElementaryHouseholderReflectors). On "tpu" eig, schur, hessenberg, pivoted QR and
    tridiagonal do, which JAX lacks there; the others stay JAX's, as all do on unknown platforms.

    Args:
      platforms: the platforms of the export.
      stablehlo_version: the lowest StableHLO version that the module should be expressible in.
    """
    if not rules_possible():
        return ()
    pairs: tuple[tuple[Any, Any], ...] = (
        *bitcast_rules(),
        *collective_rules(),
        *convolution_rules(),
        *linalg_rules(platforms),
        *ragged_rules(),
        *composite_rules(),
    )
    if stablehlo_version < BATCHING_DIMS_SINCE:
        pairs += indexing_rules()
    if stablehlo_version < RESULT_ACCURACY_SINCE:
        pairs += accuracy_rules()
    return pairs

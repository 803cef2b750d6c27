"""StableHLO forms of the matrix decompositions that JAX leaves to LAPACK and cusolver."""

from jax2tf_bridge.from_jax.linalg._arrays import adjoint, is_complex
from jax2tf_bridge.from_jax.linalg._reflectors import ormqr, pivoted_qr
from jax2tf_bridge.from_jax.linalg._rules import make_linalg_rules

__all__ = [
    "adjoint",
    "is_complex",
    "make_linalg_rules",
    "ormqr",
    "pivoted_qr",
]

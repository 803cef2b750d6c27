"""StableHLO forms of the matrix decompositions that JAX leaves to LAPACK and cusolver."""

from jax2tf_bridge.from_jax.linalg._arrays import adjoint as adjoint
from jax2tf_bridge.from_jax.linalg._arrays import is_complex as is_complex
from jax2tf_bridge.from_jax.linalg._reflectors import ormqr as ormqr
from jax2tf_bridge.from_jax.linalg._reflectors import pivoted_qr as pivoted_qr
from jax2tf_bridge.from_jax.linalg._rules import make_linalg_rules as make_linalg_rules

"""StableHLO forms of the matrix decompositions that JAX leaves to LAPACK and cusolver."""

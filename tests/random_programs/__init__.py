"""Random programs, compared with jax.jit: `python -m tests.random_programs --help`."""

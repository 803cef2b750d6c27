"""JAX's pytrees and the structures that a portable function stores."""

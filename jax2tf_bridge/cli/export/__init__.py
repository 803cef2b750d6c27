"""`jax2tf-bridge export`: writes a JAX function as a .jaxfn file."""

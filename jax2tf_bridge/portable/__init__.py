"""The portable function and what it is made of. Importing it needs neither jax nor tensorflow."""

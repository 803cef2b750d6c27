"""Many exports at once, in other processes."""

"""Both halves in one process: convert(), save(), publish()."""

"""Python objects for another process that the bridge started: callables, shardings, specs."""

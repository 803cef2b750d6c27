"""StableHLO modules in memory: constants, shardings, custom calls, versions."""

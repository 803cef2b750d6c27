"""From a traced function to StableHLO: platforms, rules, gradients."""

"""The golden corpus and its recipe."""

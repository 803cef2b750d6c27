"""Reads and writes the .jaxfn format."""

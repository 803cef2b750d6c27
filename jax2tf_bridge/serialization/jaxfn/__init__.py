"""The .jaxfn format."""

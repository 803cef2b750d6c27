"""Makes the pages of `jax2tf-bridge inspect --html`."""

from jax2tf_bridge.cli.inspect.html._page import render
from jax2tf_bridge.cli.inspect.html._pages import (
    directory_page,
    file_page,
    litert_page,
    weights_page,
)

__all__ = [
    "directory_page",
    "file_page",
    "litert_page",
    "render",
    "weights_page",
]

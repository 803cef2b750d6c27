"""Reads JSON files that have a format number, such as the sidecar and the manifest."""

from __future__ import annotations

from jax2tf_bridge._utils import JsonProblem, JsonValue
from jax2tf_bridge.storage import AnyPath


class NewerFormatError(JsonProblem):
    """The file has a format that this bridge does not know."""


def read_json(file: AnyPath, max_bytes: int) -> JsonValue:
    """Reads a JSON file.

    Raises:
      JsonProblem: it is not a regular file, is too large, or is not JSON in UTF-8.
      OSError: it cannot be read.
    """
    if not file.is_file():
        raise JsonProblem("it is not a regular file")
    size = file.stat().st_size
    if size > max_bytes:
        raise JsonProblem(f"it has {size} bytes, and at most {max_bytes} are read")
    try:
        return JsonValue.of(file.read_bytes().decode())
    except UnicodeDecodeError as e:
        raise JsonProblem(f"byte {e.start} is not UTF-8") from e


def read_format(root: JsonValue, newest: int) -> int:
    """Returns the format number of a file.

    Raises:
      NewerFormatError: it is larger than `newest`; the text follows the path of the file.
      JsonProblem: there is no number.
    """
    version = root.get("format").integer(1)
    if version > newest:
        raise NewerFormatError(
            f"is written by format {version}, this bridge reads up to {newest}: upgrade "
            "jax2tf-bridge."
        )
    return version

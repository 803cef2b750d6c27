"""Compares the instructions that save() returned with those that are read from its files."""

from dataclasses import replace

from jax2tf_bridge.saved_model import read_saved_model
from jax2tf_bridge.saving import SavedModel, read_instructions


def assert_instructions_are_recorded(saved: SavedModel) -> None:
    """Fails if the files give other instructions than `saved.serving`."""
    recorded = read_instructions(read_saved_model(saved.path))
    # A SavedModel sorts its signatures, so the notes may name them in another order.
    serving = replace(saved.serving, requests={})
    assert replace(recorded, notes=()) == replace(serving, notes=())
    assert sorted("".join(recorded.notes)) == sorted("".join(saved.serving.notes))

"""Flax's msgpack files."""

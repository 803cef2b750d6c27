"""Readers and writers of Flax's msgpack."""

"""Signatures: named inputs and outputs around a portable function."""

"""Tests of paths on disk and behind schemes."""

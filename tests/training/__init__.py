"""Tests of signatures that change weights."""

"""Tests of what SavedModels are made of."""

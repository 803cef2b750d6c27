"""Buckets: padding to sizes that are compiled beforehand."""

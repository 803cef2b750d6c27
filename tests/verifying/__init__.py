"""verify() with locate, and in other runtimes."""

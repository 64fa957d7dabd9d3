"""Writes models for other runtimes."""

"""Modules of tools/compare/run."""

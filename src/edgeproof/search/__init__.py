"""Strategies that propose recipes, one a file."""

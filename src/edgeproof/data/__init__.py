"""Data formats, one a file."""

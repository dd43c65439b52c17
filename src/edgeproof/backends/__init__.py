"""Runtimes, one a file. Backends only compile and run; algorithms live in passes."""

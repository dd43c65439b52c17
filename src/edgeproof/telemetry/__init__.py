"""Sensor sources, one a file. A sensor that is missing gives missing, never 0."""

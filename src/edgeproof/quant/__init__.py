"""Quantisation's parts: ranges, calibration, placement. The pass that uses them is ``passes/int8.py``."""

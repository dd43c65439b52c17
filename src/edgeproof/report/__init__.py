"""The HTML report of a run: one self-contained page."""

from .page import render, write_report

__all__ = ["render", "write_report"]

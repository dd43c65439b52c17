"""The device: two slots and one state file; install, watch, keep or go back.

Needs no package that optimises or measures models, and only the serving process loads a runtime.
"""

"""Bundles: keys, packing, a TUF repository and its client. Nothing here needs a model library."""

"""Real models and exactly labelled data for benchmarks, fetched from package registries and never committed.

`catalogue` says what there is, `check` whether a model still reaches the quality it is known for. Everything lies in a
cache folder: ``$EDGEPROOF_CACHE/zoo``, else ``~/.cache/edgeproof/zoo``.
"""

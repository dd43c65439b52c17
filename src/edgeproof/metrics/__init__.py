"""Numbers, one a file. Repetition, interleaving and intervals are bench's."""

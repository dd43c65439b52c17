"""Evidence: one signed file that holds all raw samples of a decision, and from which anyone can decide again."""

"""Whether the tests notice when a guard is gone: what must be refused, what refuses it, which test says so."""

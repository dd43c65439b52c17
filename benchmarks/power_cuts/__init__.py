"""Power cuts at every step of what a device does."""

"""The broker: authority, limits and contracts for operations. Pure: no I/O, no clock, no randomness."""

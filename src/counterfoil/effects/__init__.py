"""The flows: each tells one story once, for both colours and every ledger, without I/O of its own."""

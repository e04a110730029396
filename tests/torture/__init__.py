"""Campaigns against the library with real processes, real files and real signals; the recipient's log is the judge."""

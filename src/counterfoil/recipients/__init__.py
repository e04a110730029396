"""Recipients: adapters to the systems in which effects happen."""

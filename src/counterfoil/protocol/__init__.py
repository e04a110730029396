"""The pure protocol: what flows ask for, what records say, how slots and keys are named."""

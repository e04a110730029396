"""The outbox's own rules: what is staged, when it may be sent, asked about and sent again, and how it ends. Pure."""

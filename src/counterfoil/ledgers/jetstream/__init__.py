"""The JetStream ledger: a stream of its own, one subject per slot, replicated as the stream is."""

from counterfoil.ledgers.jetstream.ledger import JetStreamLedger

__all__ = ["JetStreamLedger"]

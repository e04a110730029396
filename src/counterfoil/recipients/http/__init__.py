"""HTTP with proof of what reached the wire: one request, at most one attempt, and what its answer proves."""

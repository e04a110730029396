"""The demo: a worker that is killed again and again, beside one that remembers nothing."""

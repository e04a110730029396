"""Blobs behind the S3 protocol, on the HTTP recipient: every request is one counted attempt."""

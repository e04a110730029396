"""Immutable blobs, addressed by what they are: in a folder of this machine, or behind the S3 protocol."""

"""The Python SDK: ``themis.Client`` over the arbiter's API."""

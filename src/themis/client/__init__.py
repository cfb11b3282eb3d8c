"""The Python SDK: ``themis.Client`` over the arbiter's gRPC API."""

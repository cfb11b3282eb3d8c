"""The Python SDK: ``themis.Client`` over the arbiter's gRPC API."""

import os

# gRPC writes a line to standard error for each handshake that fails, on both sides. It reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

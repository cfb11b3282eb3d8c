"""Entry points for callers: gRPC and HTTP, permissions, submissions, views of the queue. Uses the engine package."""

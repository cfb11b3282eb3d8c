"""Entry points for callers: HTTP, permissions, submissions, views of the queue. Uses the engine package."""

"""What callers ask: gRPC and HTTP, who may ask what, submissions, views of the queue. Stands on the engine room."""

"""What the operator does: start, settings, checks, backups. Stands on the API and the engine room."""

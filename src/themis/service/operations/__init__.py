"""Tasks of the operator: start, settings, checks, backups. Uses the API and engine packages."""

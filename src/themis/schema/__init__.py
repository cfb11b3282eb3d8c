"""The shapes that cross a wire: ``messages`` has the models, ``routes`` the table of calls, ``wire`` their JSON."""

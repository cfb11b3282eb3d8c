"""The web console: pages that the server renders, over the methods of the API."""

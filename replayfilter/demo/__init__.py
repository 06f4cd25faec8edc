"""The demo: a dirty stream, the service that cleans it, and a check of every record."""

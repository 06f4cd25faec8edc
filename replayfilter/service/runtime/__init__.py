"""One run of the service, from preflight to the end."""

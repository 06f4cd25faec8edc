"""One execution of the service, from the checks before the start to the end."""

"""The service: config, command line, checks before a start, execution, monitoring and tools."""

"""The service as people meet it: config, command line, preflight, progress and the demo."""

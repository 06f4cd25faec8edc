"""The ``replayfilter`` command, one module for each family of commands."""

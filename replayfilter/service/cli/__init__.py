"""The ``replayfilter`` command: main.py is its frame, and each family of commands has a module."""

"""The service's configuration: a TOML file; an environment variable may override each key.

loader.load() reads and checks it. model.Config is the result; its sections are in io_sections and
filter_sections.
"""

"""The service's configuration: a TOML file, each key of which an environment variable may override."""

"""What all configuration files share: reading TOML, durations, value types, variables, messages."""

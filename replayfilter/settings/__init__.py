"""What all configuration files share: durations, value types, messages."""

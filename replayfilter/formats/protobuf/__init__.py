"""The "protobuf" format: reading messages, and finding the types that they have."""

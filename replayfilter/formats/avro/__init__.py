"""Avro values, and the schemas that they need."""

"""Clocks: what time it is for a record, and which records have expired."""

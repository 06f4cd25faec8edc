"""Clocks: units of time, the clocks to choose from, and the arithmetic of expiry."""

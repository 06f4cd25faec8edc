"""Replay filtering: highwater marks, manual changes to them, and an audit of the stamps in a topic."""

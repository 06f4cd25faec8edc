"""Replay filtering: highwater marks, changes to them by hand, and an audit of a topic's stamps."""

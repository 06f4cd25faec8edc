"""``replayfilter transactions``: those that are open, and an end for those that a dead service has left."""

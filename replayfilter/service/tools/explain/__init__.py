"""``replayfilter explain``: the way of one record, from the input to where it was written."""

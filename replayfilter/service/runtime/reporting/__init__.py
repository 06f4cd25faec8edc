"""What a running service reports of its batches: on a terminal, as JSON, and as spans."""

"""``replayfilter rebuild``: a new checkpoint from what Kafka still has of a service."""

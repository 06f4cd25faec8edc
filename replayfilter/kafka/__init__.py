"""Kafka access: settings, topics and offsets, bounded reads, and exactly-once delivery through lanes."""

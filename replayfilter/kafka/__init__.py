"""What talks to Kafka: stamping producer, filtering consumer, lanes, and what an administrator asks."""

"""For other teams' code, without Spark: a stamping producer, a filtering consumer, producer ids."""

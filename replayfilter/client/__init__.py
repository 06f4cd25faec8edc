"""The library for jobs and consumers, without Spark: a stamping producer, a filtering consumer, pids."""

"""The pure core: stamps, marks, expiry, buckets and routing.

Nothing here knows Spark, Kafka, a clock, a file or a thread: time and state come in as arguments.
"""

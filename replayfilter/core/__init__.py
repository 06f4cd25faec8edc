"""The pure core: stamps, marks, expiry, buckets and routing.

Nothing here knows Spark, Kafka, the time of day, a file or a thread: time and state are arguments. The
service, the plain consumer and the tests use the same core.
"""

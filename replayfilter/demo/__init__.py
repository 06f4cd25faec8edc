"""The demo, whose stream and check are also the oracle of the end-to-end tests.

- `stream` generates a stream of dirty records and computes, record by record, the route each one must take.
- `check` compares the service's output topics with that, record by record.
- `walkthrough` is the command ``replayfilter demo``: it runs the service on a stream and prints the check.
- `feed` publishes an endless stream; docker-compose.yml starts it.
- `kafka_io` writes and reads the topics.

`stream` and `check` import nothing from the rest of replayfilter: if they shared code with the service, an
error in that code would go unnoticed. The kill tests, the pipeline tests and the compose tests rely on this.
"""

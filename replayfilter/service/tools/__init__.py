"""The other commands: verify, doctor, publish, state, topics, prepare."""

"""``replayfilter redrive``: error or expired records back into a topic, exactly once."""

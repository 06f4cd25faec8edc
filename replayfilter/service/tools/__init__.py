"""The commands besides ``run``: verify, doctor, publish, state (`marks`), topics and prepare."""

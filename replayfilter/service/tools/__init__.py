"""The commands besides ``run``: verify, doctor, publish, state (`state_command`), topics and prepare."""

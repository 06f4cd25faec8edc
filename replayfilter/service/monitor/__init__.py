"""What a running service shows: status, lag, metrics, health and pages."""

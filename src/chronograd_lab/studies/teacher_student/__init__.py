"""Images without labels: a teacher labels them, a student learns from the best."""

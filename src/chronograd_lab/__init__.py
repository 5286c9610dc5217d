"""The lab: studies that answer questions with Chronograd, and the exercises that they answer."""

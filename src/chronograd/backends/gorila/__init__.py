"""Gorila on Ray: many learners over parameter servers. A job of it has `reinforcement.algorithm=gorila`."""

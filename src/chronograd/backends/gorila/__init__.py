"""Gorila on Ray: many learners over parameter servers. Its jobs have `reinforcement.algorithm=gorila`."""

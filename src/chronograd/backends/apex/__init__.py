"""Ape-X on Ray: many actors, replay with priorities in shards, one learner. Its jobs have `reinforcement.algorithm=apex`."""

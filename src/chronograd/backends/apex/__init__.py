"""Ape-X on Ray: many actors, replay with priorities in shards, one learner. A job of it has `reinforcement.algorithm=apex`."""

"""A fleet in simulated time: the real scheduler and KV block pool, and a cost model in place of the model."""

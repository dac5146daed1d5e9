"""Who else may run a call: one process, or all that share a store."""

"""Who runs a call and who waits for it: threads, event loops and the pool."""

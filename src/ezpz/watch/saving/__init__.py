"""Have the ranks save before the job ends, before a SIGTERM from outside, or when a file asks for it."""

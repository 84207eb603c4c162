"""Run the ranks of one host: the agent, its ranks, and what it sends to the supervisor."""

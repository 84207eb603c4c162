"""Read what a launch left that ezpz did not start: logs of its ranks and launcher, and dumps of torch."""

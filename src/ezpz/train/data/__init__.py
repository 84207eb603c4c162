"""Data for trainers, with and without a network; the names for users are in `ezpz.train`."""

"""Watch runs: each folder is a subject with a side in the launcher, one on every host, and what they say to each other.

`ezpz.launch.watchers` calls them; [architecture](docs/architecture.md) says how to add one.
"""

"""Watch the heartbeats of ranks: end a run that makes no progress, and draw the line that shows how far it is."""

"""Read the counters of one host: its devices, and what the processes of this launch use."""

"""Sample what the devices of a launch do, keep the rows beside its run, and note what somebody should look at."""

"""A small laboratory: hosts, a Slurm cluster and four MPI flavours on one machine."""

#!/bin/sh
# What a user of a bare mpiexec (MPICH) writes so that a plain torch script finds its ranks.
export RANK="$PMI_RANK" WORLD_SIZE="$PMI_SIZE" LOCAL_RANK="$MPI_LOCALRANKID" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$@"

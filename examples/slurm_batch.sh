#!/bin/bash
#SBATCH --nodes=4 --no-kill --time=60
fluxsched start --engine slurm -- sh -c "
    fluxsched submit --cc=1-${TASKS:-10000} --wait --quiet true         # small tasks on all cores
    fluxsched run --nodes=4 --ntasks=${RANKS:-16} --label-io ${PROGRAM:-hostname}  # and an MPI program over all nodes"

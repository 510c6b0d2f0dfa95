#!/bin/sh
# An operator with the commands of Flux, which find the instance by FLUX_URI: a job that submits further jobs, and
# cancels those it no longer needs. operator_job.py does the same with fluxsched's Python API.
guess=$(flux submit -n1 --job-name=guess sleep 300)
compute=$(flux submit -n1 --job-name=compute true)

flux job wait-event "$compute" clean >/dev/null
flux cancel "$guess"
flux job wait-event "$guess" clean >/dev/null
flux jobs -n -o '{name} {result}' --filter=inactive | sort

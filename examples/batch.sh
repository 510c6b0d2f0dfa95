#!/bin/sh
# A batch script that means the same to `fluxsched batch` and to `flux batch`:
#flux: --nslots=2 --nodes=1           # two slots of one core on one node
#flux: --job-name=example -t 5m
#flux: --output=example.out           # else it is flux-{{id}}.out
#flux: --error=example.err
#flux: --env=GREETING='hello, world'
#flux: --setattr=user.site="""
#flux: {"project": "weather",
#flux:  "contact": "kim's office"}
#flux: """
# The script runs in an instance of its own, which has only the requested resources.
flux=${FLUXSCHED_URI:+fluxsched}      # the commands have the same names
flux=${flux:-flux}

echo "$GREETING: $*"
$flux resource list -s free -n -o '{nnodes} node, {ncores} cores'
$flux run -n 2 sh -c 'echo "task $FLUX_TASK_RANK of $FLUX_JOB_SIZE"' | sort
$flux run -n 1 sh -c 'exit 3' 2>/dev/null
echo "a task failed with $?"

first=$($flux submit --job-name=first sleep 0.1)
$flux run --dependency=afterok:"$first" --job-name=second echo "the first is done"
$flux jobs -a -n -o '{name} {ntasks} {status_abbrev}' | grep -e first -e second | tr -s ' ' | sort
exit 4

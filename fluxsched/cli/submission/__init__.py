"""Commands that submit jobs: submit, run, bulksubmit, batch, alloc."""

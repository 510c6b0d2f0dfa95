"""The services about jobs: `job-manager.*`, their streams, and what the job manager decides done."""

"""History of an instance: samples, intervals of target states, and the usage of jobs."""

"""An instance as its peers see it: for benchmarks whose judges share no code with what they judge."""

"""What a task is given before it runs: its place, environment, program, input, output and PMI socket."""

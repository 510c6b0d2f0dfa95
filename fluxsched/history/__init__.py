"""What an instance keeps of its past: samples, intervals of targets' states, and accounts of what jobs used."""

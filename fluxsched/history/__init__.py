"""What an instance keeps of its past: samples, intervals of target states, and what jobs used."""

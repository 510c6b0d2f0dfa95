"""What may be asked about jobs: selections, listings, attributes, results. Reads only."""

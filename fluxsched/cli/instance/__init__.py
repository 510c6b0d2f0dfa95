"""Commands on an instance as a whole, and on what is installed."""

"""Jobs that run: their attempts, their sizes, how far their targets are apart."""

"""The policies that come with fluxsched, one a file; others are found by file name or by entry point."""

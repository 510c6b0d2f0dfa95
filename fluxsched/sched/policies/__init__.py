"""The policies that come with fluxsched; others are found by file name or by entry point."""

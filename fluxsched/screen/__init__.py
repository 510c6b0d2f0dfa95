"""`fluxsched top`: the instance in a terminal. Needs the extra `tui` (Textual)."""

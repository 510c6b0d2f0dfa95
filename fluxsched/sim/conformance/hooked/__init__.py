"""The conformance suite for plugins: what a plugin answers, and what is left behind when something fails."""

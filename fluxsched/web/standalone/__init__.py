"""Views as files of their own, which need no server and no network."""

"""One file a kind of topic: what is asked of an instance while it is subscribed to."""

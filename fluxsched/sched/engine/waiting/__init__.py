"""The jobs of one acquired group: its queues, what is set aside, what their owners are told."""

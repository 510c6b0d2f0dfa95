"""Adapters to other systems: each package runs our `sched` inside one of them, with its messages."""

"""Commands on jobs that were submitted, and on queues."""

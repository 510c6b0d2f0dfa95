"""Jobs of this instance that run in other ones: a connection a cluster, and the executor whose way it is."""

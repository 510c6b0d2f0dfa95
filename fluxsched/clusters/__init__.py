"""Jobs of this instance that run in other ones: links to clusters, and leases on both sides."""

"""What stands between a browser and the page: where it is served, who may see it, how much may be sent, how long."""

"""The live picture of an instance that page, terminal screen and map share."""

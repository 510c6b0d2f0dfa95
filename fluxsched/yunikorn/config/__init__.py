"""YuniKorn's configuration: read with every fault by its path, and where it puts applications."""

"""An instance as a resource manager: a scheduler module whose decisions a service of the interface makes."""

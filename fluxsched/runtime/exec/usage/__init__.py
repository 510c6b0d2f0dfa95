"""What the tasks of a job use, and keeping them to the memory that they asked for."""

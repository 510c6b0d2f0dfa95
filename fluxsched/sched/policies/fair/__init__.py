"""Fair shares over any other policy: whose job comes next, what limits hold back, who is preempted."""

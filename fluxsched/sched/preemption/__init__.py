"""Preemption: which running jobs may go for others, which are going, and what would fit if they were gone."""

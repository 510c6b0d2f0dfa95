"""What a simulation gives: tables of jobs, figures, reports and plots."""

"""What jobs use, counted in resources that weigh, and booked in the accounts of a scheduler."""

"""Ending processes that outlive their job or their instance."""

"""A resource manager that puts a scheduler service under load, and measures it."""

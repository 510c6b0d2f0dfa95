"""The SQLite file of an instance: its tables and rows, the writer that commits them, damage and repair."""

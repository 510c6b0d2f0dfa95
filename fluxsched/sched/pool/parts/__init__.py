"""Jobs of several parts: which targets suit which of them, whether all fit at once, and where."""

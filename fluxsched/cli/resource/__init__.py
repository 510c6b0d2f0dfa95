"""Commands on targets: show, drain, exclude, move."""

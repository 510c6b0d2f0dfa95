"""Commands on policies and simulations."""

"""The page: an instance in a browser, and simulations as files of their own."""

"""Other people's engines: each package drives our `sched` inside one of them and speaks its dialect."""

"""The imperative shell: it feeds events to the pure packages and performs the effects that they return.

Law: decide, then do. Clocks, files, sockets and processes are here and nowhere else.
"""

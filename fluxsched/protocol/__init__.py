"""Protocol between the parts of an instance, without I/O: messages, framing, codec, bundles, and sessions.

Law: sockets, clocks and other packages' states are unknown here; a session takes what arrived and returns what to send.
"""

"""What goes between the parts of an instance, without I/O: messages, framing, codec, bundles, and sessions.

Law: sockets, clocks and the other packages' states are unknown here; a session is told what came and says what to send.
"""

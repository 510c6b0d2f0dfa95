"""Moves lists of frames between peers and reports the peers that are lost; knows no message and no service.

`base` defines what every transport does, `zeromq` does it on ZeroMQ sockets, `memory` within one process.
"""

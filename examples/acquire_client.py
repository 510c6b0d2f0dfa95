"""A raw resource.acquire client: pyzmq and msgpack only, from rfc/wire.md and rfc/acquisition.md.

Run inside an instance without a scheduler: fluxsched start --fake 4x4 --scheduler none -- python acquire_client.py
It acquires the group `default`, drains target 1 itself, and exits once that is reported.
"""

import os
import struct

import msgpack
import zmq

REQUEST, TOPIC, PAYLOAD, STREAMING, ROUTE = 1, 0x01, 0x02, 0x40, 0x08
HEADER = struct.Struct("!BBBBIIII")  # magic, version, type, flags, userid, rolemask, nodeid or errnum, matchtag
socket = zmq.Context.instance().socket(zmq.DEALER)
monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
socket.connect(os.environ["FLUXSCHED_URI"])


def send(topic: str, payload: dict, matchtag: int, flags: int = 0) -> None:
    flags |= TOPIC | PAYLOAD | ROUTE
    header = HEADER.pack(0x8E, 1, REQUEST, flags, 0xFFFFFFFF, 0, 0xFFFFFFFF, matchtag)
    socket.send_multipart([b"", topic.encode(), msgpack.packb(payload), header])


def receive() -> tuple[int, int, dict]:
    if monitor in zmq.select([socket, monitor], [], [])[0]:  # ZeroMQ would connect to the next instance without a word
        raise SystemExit("the instance is gone")
    *parts, header = socket.recv_multipart()
    *_, errnum, matchtag = HEADER.unpack(header)
    return matchtag, errnum, msgpack.unpackb(parts[2]) if len(parts) > 2 and not errnum else {}


send("resource.acquire", {"group": "default"}, matchtag=1, flags=STREAMING)
while True:
    matchtag, errnum, message = receive()
    if errnum:
        raise SystemExit(f"error {errnum}: {os.strerror(errnum)}")
    if matchtag != 1:
        continue  # the empty response to the drain request
    print(message["type"], {key: message[key] for key in ("online", "offline", "targets") if key in message})
    if message["type"] == "grow":
        send("resource.drain", {"targets": "1", "reason": "acquire_client.py"}, matchtag=2)
    elif message["type"] == "offline":
        break

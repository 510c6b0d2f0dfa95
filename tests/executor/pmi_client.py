"""A PMI-1 client of a page, made from RFC 13 alone: `python pmi_client.py exchange|wait|die|abort|flood|deaf`."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time


class Pmi:
    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
        self.socket = socket.socket(fileno=int(os.environ["PMI_FD"]))
        self.file = self.socket.makefile("rw", encoding="ascii", newline="\n")
        self.ask("init", pmi_version=1, pmi_subversion=1)
        self.space = self.ask("get_my_kvsname")["kvsname"]

    def ask(self, command: str, **words: object) -> dict[str, str]:
        self.file.write(" ".join([f"cmd={command}", *[f"{key}={value}" for key, value in words.items()]]) + "\n")
        self.file.flush()
        found = dict(word.partition("=")[::2] for word in self.file.readline().split())
        assert found.get("rc", "0") == "0", found
        return found


def main(what: str) -> None:
    pmi = Pmi()
    if what == "exchange":
        pmi.ask("put", kvsname=pmi.space, key=f"card-{pmi.rank}", value=f"of={pmi.rank}")
        pmi.ask("barrier_in")
        cards = [pmi.ask("get", kvsname=pmi.space, key=f"card-{rank}")["value"] for rank in range(pmi.size)]
        mapping = pmi.ask("get", kvsname=pmi.space, key="PMI_process_mapping")["value"]
        pmi.ask("barrier_in")
        pmi.ask("finalize")
        sys.stdout.write(" ".join([str(pmi.rank), *cards, mapping]) + "\n")
        return
    if what == "wait":
        os.write(1, f"{pmi.rank} is here\n".encode())
    elif pmi.rank == 1:
        if what == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif what == "abort":
            pmi.socket.sendall(b"cmd=abort exitcode=5\n")
        elif what == "flood":
            pmi.socket.sendall(b"x" * 100_000)
        else:
            while True:
                pmi.socket.sendall(b"cmd=get_maxes\n" * 1000)
    pmi.ask("barrier_in")
    time.sleep(60)


main(sys.argv[1])

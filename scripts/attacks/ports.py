"""Strangers on the ports of a job. Connects to 127.0.0.1 alone, and to nothing but ports on which a given process listens."""

import os
import pathlib
import socket
import struct
import time

LOOPBACK = "127.0.0.1"


def listening(pid: int) -> list:
    """The TCP ports on which the process listens and that loopback reaches."""
    inodes = set()
    for descriptor in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    for line in pathlib.Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        address, port = columns[1].split(":")
        if columns[3] == "0A" and columns[9] in inodes and address in ("0100007F", "00000000"):
            ports.append(int(port, 16))
    return ports


def memory_of(pid: int) -> int:
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) << 10
    return 0


class Strangers:
    """Connections that stay open until the `with` ends."""

    def __init__(self, pid: int):
        self.pid = pid
        self.open = []

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        for connection in self.open:
            connection.close()

    def connect(self, port: int):
        if port not in listening(self.pid):
            raise PermissionError(f"port {port} is none of process {self.pid}")
        connection = socket.create_connection((LOOPBACK, port), timeout=2)
        connection.setblocking(False)
        self.open.append(connection)
        return connection

    def send(self, connection, data: bytes) -> None:
        try:
            connection.send(data)
        except OSError:
            pass  # refused or shut: as it should be

    def garbage(self, port: int) -> None:
        for _ in range(100):
            self.send(self.connect(port), os.urandom(4096))

    def half_open(self, port: int) -> None:
        for _ in range(300):
            self.connect(port)

    def slow_bytes(self, port: int) -> None:
        slow = [self.connect(port) for _ in range(20)]
        for _ in range(20):
            for connection in slow:
                self.send(connection, b"\x01")
            time.sleep(0.02)

    def huge_lengths(self, port: int) -> None:
        for size in (0xFFFFFFFF, 0x7FFFFFFF, 1 << 31, 1 << 28):
            for form in ("<I", ">I", "<Q", ">Q"):
                for lead in (b"", bytes(4), bytes(8), bytes(16)):
                    self.send(self.connect(port), lead + struct.pack(form, size) + bytes(64))

"""A network that goes wrong when it is told to: passes on the connections of the ranks of one cell (relay.c).

  python3 relay.py

Prints the port at which it listens. Lines on standard input, as JSON, say what happens from then on to the connections of one rank:
{"what": "cut" | "half" | "slow" | "silent" | "pass", "rank": 1, "ports": [those where the rank listens]}. cut: nothing passes between
the rank's proxy and others; half: nothing that is sent to it; slow: some KiB a second; silent: cut, and the bootstrap's connections, too.
Each is answered by a line: for how many seconds at a time the relay, which is to be a slow link, has passed on nothing at most, because it
had no core: then the link stood still indeed.
"""

import json
import os
import selectors
import socket
import struct
import sys
import time

PREAMBLE = 32
BYTES_PER_SECOND = 16 << 10
KEPT = 64 << 10  # bytes that a way holds


class Way:
    def __init__(self, source, target):
        self.source, self.target, self.bytes, self.allowed, self.ended = source, target, b"", 0.0, False


class Connection:
    def __init__(self, near, rank, is_proxy, far, port):
        self.rank, self.is_proxy, self.port = rank, is_proxy, port
        self.near, self.far = near, far
        self.ways = [Way(near, far), Way(far, near)]

    def close(self):
        self.near.close()
        self.far.close()


class Relay:
    def __init__(self):
        self.what, self.rank, self.ports = "pass", -1, set()
        self.connections = []
        self.stood_still = 0.0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        os.set_blocking(0, False)

    def may_pass(self, connection, to_far: bool) -> bool:
        to_rank = connection.port in self.ports
        if not to_rank and connection.rank != self.rank:
            return True
        if self.what == "silent":
            return False
        if not connection.is_proxy:
            return True
        if self.what == "cut":
            return False
        return self.what != "half" or to_far != to_rank

    def is_slow(self, connection) -> bool:
        return self.what == "slow" and connection.is_proxy and (
            connection.port in self.ports or connection.rank == self.rank)

    def accept(self) -> None:
        near, _ = self.listener.accept()
        near.settimeout(5)
        first = b""
        while len(first) < PREAMBLE:
            more = near.recv(PREAMBLE - len(first))
            if not more:
                return near.close()
            first += more
        rank, is_proxy, address, port = struct.unpack("=iiIH18x", first)
        far = socket.socket()
        far.settimeout(5)
        try:
            far.connect((socket.inet_ntoa(struct.pack("=I", address)), port))
        except OSError:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()
            return far.close()
        for one in (near, far):
            one.setblocking(False)
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connections.append(Connection(near, rank, bool(is_proxy), far, port))

    def move(self, connection, way, elapsed: float) -> bool:
        """False: the connection has ended."""
        to_far = way is connection.ways[0]
        if not self.may_pass(connection, to_far):
            return True
        if self.is_slow(connection):
            way.allowed = min(way.allowed + elapsed * BYTES_PER_SECOND, 4096.0)
        else:
            way.allowed = float(KEPT)
        try:
            if not way.ended and len(way.bytes) < KEPT:
                got = way.source.recv(KEPT - len(way.bytes))
                way.bytes += got
                way.ended = not got
        except BlockingIOError:
            pass
        except OSError:
            return False
        try:
            if way.bytes and way.allowed >= 1:
                sent = way.target.send(way.bytes[:int(way.allowed)])
                way.bytes, way.allowed = way.bytes[sent:], way.allowed - sent
        except BlockingIOError:
            pass
        except OSError:
            return False
        if way.ended and not way.bytes:
            try:
                way.target.shutdown(socket.SHUT_WR)
            except OSError:
                return False
        return not all(each.ended and not each.bytes for each in connection.ways)

    def run(self) -> None:
        print(self.listener.getsockname()[1], flush=True)
        last, commands, is_slow = time.monotonic(), b"", False
        while True:
            with selectors.DefaultSelector() as selector:
                selector.register(self.listener, selectors.EVENT_READ)
                selector.register(0, selectors.EVENT_READ)
                is_slow = False
                for connection in self.connections:
                    events = {connection.near: 0, connection.far: 0}
                    for way, to_far in zip(connection.ways, (True, False)):
                        if not self.may_pass(connection, to_far):
                            continue
                        if not way.ended and not way.bytes:
                            events[way.source] |= selectors.EVENT_READ
                        if way.bytes and self.is_slow(connection):
                            is_slow = True
                        elif way.bytes:
                            events[way.target] |= selectors.EVENT_WRITE
                    for file, of in events.items():
                        if of:
                            selector.register(file, of)
                ready = {key.fileobj for key, _ in selector.select(0.02 if is_slow else None)}
            if 0 in ready:
                more = os.read(0, 4096)
                if not more:
                    return
                commands += more
                *lines, commands = commands.split(b"\n")
                for line in lines:
                    command = json.loads(line)
                    self.what, self.rank, self.ports = command["what"], command["rank"], set(command["ports"])
                    print(self.stood_still, flush=True)
            if self.listener in ready:
                self.accept()
            now = time.monotonic()
            elapsed, last = now - last, now
            if is_slow:
                self.stood_still = max(self.stood_still, elapsed)
            for connection in list(self.connections):
                is_touched = self.is_slow(connection) or connection.near in ready or connection.far in ready
                if is_touched and not all([self.move(connection, way, elapsed) for way in connection.ways]):
                    connection.close()
                    self.connections.remove(connection)


if __name__ == "__main__":
    try:
        os.nice(-15)  # a link needs no core
    except PermissionError:
        pass
    Relay().run()

"""Machines that are network namespaces of this one, joined by a bridge: processes in them reach each other by these wires alone.

Needs root and ip(8). All of it goes with the object and the processes.
"""

import ctypes
import os
import subprocess
import threading

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)


def enter(namespace: int) -> None:
    """This thread's, or, between fork and exec, this process's."""
    if LIBC.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace (setns)")


def make_namespace() -> int:
    made = []

    def unshare() -> None:
        if LIBC.unshare(CLONE_NEWNET) == 0:
            made.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))

    thread = threading.Thread(target=unshare)  # whose namespace alone is another one
    thread.start()
    thread.join()
    if not made:
        raise OSError("this kernel, or this user, has no network namespaces (unshare)")
    return made[0]


class Machines:
    def __init__(self, count: int):
        self.between, self.namespaces = make_namespace(), [make_namespace() for _ in range(count)]
        lines = ["link set lo up", "link add br0 type bridge", "link set br0 up"]
        for number, namespace in enumerate(self.namespaces):
            inside = f"/proc/{os.getpid()}/fd/{namespace}"
            lines += [f"link add m{number} type veth peer name eth0 netns {inside}", f"link set m{number} master br0", f"link set m{number} up"]
        self.configure(self.between, lines)
        for number, namespace in enumerate(self.namespaces):
            self.configure(namespace, ["link set lo up", f"addr add 10.77.1.{number + 1}/24 dev eth0", "link set eth0 up"])

    def close(self) -> None:
        for namespace in (self.between, *self.namespaces):
            os.close(namespace)

    def configure(self, namespace: int, lines: list) -> None:
        subprocess.run(["ip", "-batch", "-"], input="\n".join(lines), text=True, check=True, preexec_fn=lambda: enter(namespace))

    def start(self, number: int, command: list, **options) -> subprocess.Popen:
        namespace = self.namespaces[number]
        return subprocess.Popen(command, preexec_fn=lambda: enter(namespace), **options)

    def unplug(self, number: int) -> None:
        """Nothing comes from that machine any more, and nothing goes there; nobody is told."""
        self.configure(self.between, [f"link set m{number} nomaster"])

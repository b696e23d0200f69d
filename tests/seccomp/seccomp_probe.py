"""The child of a test: installs the filters it is given, makes one raw call, and says what came back.

Its first argument is JSON:
    programs  paths of BPF programs, installed in order
    call      [number, arguments…]; a string is passed as a pointer to it
    int80     instead of a call: do it by the 32-bit gate, with this number
    listener  a socket's descriptor: the first program gets a listener, which is sent over it
    wait      wait for a byte on that socket before the call
    execute   instead of a call: become this command
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import socket
import sys

from belljar.backends.seccomp.install import install

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long


def raw(number: int, arguments: list[int | str]) -> dict[str, int]:
    values = [ctypes.c_char_p(a.encode()) if isinstance(a, str) else ctypes.c_ulong(a) for a in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *values)
    return {"result": result, "errno": ctypes.get_errno() if result < 0 else 0, "pid": os.getpid()}


def gate(number: int) -> dict[str, int]:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    # push rbx; mov eax, number; int 0x80; pop rbx; ret
    page.write(b"\x53\xb8" + number.to_bytes(4, "little") + b"\xcd\x80\x5b\xc3")
    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    result = function()
    return {"result": result, "errno": -result if result < 0 else 0, "pid": os.getpid()}


def main() -> None:
    job = json.loads(sys.argv[1])
    programs = []
    for path in job["programs"]:
        with open(path, "rb") as file:
            programs.append(file.read())
    os.umask(0)
    channel = socket.socket(fileno=job["listener"]) if "listener" in job else None
    for index, program in enumerate(programs):
        descriptor = install(program, listener=channel is not None and index == 0)
        if channel is not None and index == 0:
            socket.send_fds(channel, [b"!"], [descriptor])
            os.close(descriptor)
    if job.get("wait"):
        assert channel is not None
        channel.recv(1)
    if "execute" in job:
        os.execv(job["execute"][0], job["execute"])
    answer = gate(job["int80"]) if "int80" in job else raw(job["call"][0], job["call"][1:])
    os.write(1, json.dumps(answer).encode())
    os._exit(0)


main()

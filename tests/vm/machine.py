"""The machine while it lives: QEMU, started and surely ended, and the four channels it speaks through."""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import IO

from image import Image
from progress import VmError, say

TIMEOUT_CODE = 124
BOOT_SECONDS = 180.0
POWER_OFF_SECONDS = 10.0
HEARTBEAT_SECONDS = 15.0
CONSOLE_LINES = 40

KERNEL_ARGUMENTS = (
    "root=/dev/vda rw console=ttyS0 quiet loglevel=4 panic=-1 "
    "systemd.unit=belljar-vm.target systemd.show_status=error systemd.log_target=kmsg "
    # Emulation pays dearly for these, and nothing under test depends on them.
    "mitigations=off audit=0 nowatchdog cryptomgr.notests tsc=reliable no_timer_check random.trust_cpu=on"
)


@dataclass(frozen=True)
class Hardware:
    """What the machine is made of."""

    cpus: int
    memory_mb: int
    accelerator: str


def boot(image: Image, hardware: Hardware, disk: IO[bytes], *, timeout: float, show_console: bool) -> int:
    """Boots, follows the command to its end and powers off; the command's exit code, or 124.

    Raises:
        VmError: the machine ended, or never got ready, before the command had an exit code.
    """
    with ExitStack() as cleanup:
        pairs = [socket.socketpair() for _ in range(4)]
        ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        for end in ours + theirs:
            cleanup.enter_context(end)
        command = qemu_command(image, hardware, disk.fileno(), [end.fileno() for end in theirs])
        say(f"booting ({hardware.cpus} cpus, {hardware.memory_mb} MB, {hardware.accelerator.partition(',')[0]}) …")
        conversation = Conversation(timeout, show_console)
        machine = cleanup.enter_context(started(command, [disk.fileno(), *(end.fileno() for end in theirs)]))
        for end in theirs:
            end.close()
        conversation.follow(ours)
        if conversation.timed_out:
            return TIMEOUT_CODE
        if conversation.code is None:
            machine.wait(POWER_OFF_SECONDS)
            raise VmError(f"the machine ended before the command had an exit code\n{conversation.last_words()}")
        return conversation.code


def qemu_command(image: Image, hardware: Hardware, disk: int, channels: list[int]) -> list[str]:
    console, stdout, stderr, status = channels
    ports = []
    for number, descriptor in enumerate((stdout, stderr, status), 1):
        ports += ["-chardev", f"socket,id=port{number},fd={descriptor}"]
        ports += ["-device", f"virtserialport,chardev=port{number},nr={number}"]
    return [
        # The kernel ends QEMU if this program dies without a chance to.
        "setpriv", "--pdeathsig=KILL",
        "qemu-system-x86_64", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-machine", "q35,vmport=off,hpet=off,smbus=off,sata=off,usb=off", "-accel", hardware.accelerator,
        "-cpu", "host" if hardware.accelerator.startswith("kvm") else "max",
        "-smp", str(hardware.cpus), "-m", str(hardware.memory_mb), "-nic", "none",
        "-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", KERNEL_ARGUMENTS,
        # Writes go to a file that QEMU unlinks at once: the image stays as it was image.
        "-drive", f"if=virtio,format=raw,cache=unsafe,snapshot=on,file={image.disk}",
        "-add-fd", f"fd={disk},set=1",
        "-drive", "if=virtio,format=raw,readonly=on,file.locking=off,file=/dev/fdset/1",
        "-device", "virtio-rng-pci",
        "-chardev", f"socket,id=console,fd={console}", "-serial", "chardev:console",
        "-device", "virtio-serial-pci", *ports,
    ]  # fmt: skip


@contextmanager
def started(command: list[str], inherited: list[int]) -> Iterator[subprocess.Popen[bytes]]:
    """The machine; gone when the block ends, however it ends."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=inherited)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass
class Conversation:
    """What the machine says: console, stdout, stderr, and guest.py's events."""

    timeout: float
    show_console: bool
    began: float = field(default_factory=time.monotonic)
    command_began: float | None = None
    ended: float | None = None
    code: int | None = None
    timed_out: bool = False
    events: bytes = b""
    console: bytes = b""

    def follow(self, ends: list[socket.socket]) -> None:
        """Copies until the machine has closed all channels, which its power-off does, or time is up."""
        takers = dict(zip(ends, (self.take_console, self.take_stdout, self.take_stderr, self.take_status), strict=True))
        heartbeat = self.began + HEARTBEAT_SECONDS
        with selectors.DefaultSelector() as selector:
            for end, take in takers.items():
                selector.register(end, selectors.EVENT_READ, take)
            while selector.get_map() and not self.time_is_up():
                for key, _ in selector.select(1.0):
                    if data := receive(key.fileobj):
                        key.data(data)
                    else:
                        selector.unregister(key.fileobj)
                if self.command_began is None and time.monotonic() > heartbeat:
                    say(f"still booting after {time.monotonic() - self.began:.0f} s")
                    heartbeat += HEARTBEAT_SECONDS

    def time_is_up(self) -> bool:
        """After power-off time the verdict is in and QEMU is simply killed; else there is none."""
        now = time.monotonic()
        if self.ended is not None:
            return now - self.ended > POWER_OFF_SECONDS
        if self.command_began is None:
            if now - self.began > BOOT_SECONDS:
                raise VmError(
                    f"not booted after {BOOT_SECONDS:.0f} s\n{self.last_words()}",
                    hint="--console shows the boot as it happens",
                )
            return False
        if now - self.command_began > self.timeout:
            say(f"timeout: the command was still running after {self.timeout:.0f} s (--timeout SECONDS gives it more)")
            self.timed_out = True
        return self.timed_out

    def take_console(self, data: bytes) -> None:
        self.console = (self.console + data)[-16384:]
        if self.show_console:
            sys.stderr.buffer.write(data)
            sys.stderr.flush()

    def take_stdout(self, data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()

    def take_stderr(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)
        sys.stderr.flush()

    def take_status(self, data: bytes) -> None:
        *lines, self.events = (self.events + data).split(b"\n")
        for line in lines:
            self.take_event(json.loads(line))

    def take_event(self, event: dict[str, object]) -> None:
        now = time.monotonic()
        if event["event"] == "booted":
            say(f"booted: {now - self.began:.1f} s")
        elif event["event"] == "started":
            self.command_began = now
            say(f"unpacked the work tree; the command starts {now - self.began:.1f} s after power-on")
        elif event["event"] == "exit" and self.command_began is not None:
            self.code, self.ended = int(str(event["code"])), now
            say(f"the command ended with exit code {self.code} after {now - self.command_began:.1f} s")
            if event["left_open"]:
                say("note: a process it left behind still held its output open")

    def last_words(self) -> str:
        lines = self.console.decode(errors="replace").replace("\r", "").splitlines()[-CONSOLE_LINES:]
        return (
            "\n".join(["the end of its console:", *(f"    {line}" for line in lines)])
            if lines
            else "its console is empty"
        )


def receive(end: object) -> bytes:
    assert isinstance(end, socket.socket)
    try:
        return end.recv(65536)
    except ConnectionResetError:  # QEMU was gone before it read all of ours, and we send nothing
        return b""

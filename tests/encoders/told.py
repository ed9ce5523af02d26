"""An encoder that does what its text tells it: "kill_template 3" has `kill_template` happen, the
first time it comes.

`model.kwargs.notes` is a folder for marks. While it encodes it holds the file `device` there: two
at once would fail.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from subprocess import DEVNULL

import good


class Encoder(good.Encoder):
    def __init__(self, notes):
        self.notes = notes

    def encode(self, texts, batch_size):
        device = self.notes / "device"
        os.close(os.open(device, os.O_CREAT | os.O_EXCL))
        try:
            for text in texts:
                self.obey(text)
            return super().encode(texts, batch_size)
        finally:
            device.unlink()

    def obey(self, text):
        mark = self.notes / f"done-{text.replace(' ', '-')}"
        deed = DEEDS.get(text.partition(" ")[0])
        if deed is None or mark.exists():
            return
        mark.touch()
        if deed in DEADLY:
            (self.notes / "device").unlink()
        deed()


def segfault():
    ctypes.string_at(0)


def leave():
    os._exit(44)


def template_pid():
    """Of the template; a fresh worker has none and, with auto, may be first."""
    parent = os.getppid()
    return (
        parent
        if b"chunkvisor_worker.template" in Path(f"/proc/{parent}/cmdline").read_bytes()
        else None
    )


def kill_template():
    template = template_pid()
    if template is None:
        return
    os.kill(template, signal.SIGKILL)
    while os.getppid() == template:
        time.sleep(0.001)


def stop_template():
    if (template := template_pid()) is not None:
        os.kill(template, signal.SIGSTOP)


def sleep():
    time.sleep(3600)


def hold_the_gil():
    # PyDLL keeps the lock while it is in C.
    ctypes.PyDLL(None).sleep(3600)


def start_child(**options):
    """Start a process whose environment is empty, leave its pid in the attempt's folder, and hang."""
    child = subprocess.Popen(["sleep", "3600"], env={}, **options)
    (Path(sys.argv[1]) / "child").write_text(str(child.pid))
    sleep()


def start_silent_child():
    start_child(stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)


def start_daemon():
    start_child(start_new_session=True)


DEEDS = {deed.__name__: deed for deed in (segfault, leave, kill_template, stop_template)}
STARTING = (start_silent_child, start_daemon)
DEEDS |= {deed.__name__: deed for deed in (sleep, hold_the_gil, *STARTING)}
DEADLY = (segfault, leave, sleep, hold_the_gil, *STARTING)


def make(model, device):
    return Encoder(Path(model.kwargs["notes"]))

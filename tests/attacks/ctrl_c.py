"""Runs a command on a terminal of its own, types Ctrl-C once its child works, and prints how both ended."""

import os
import pty
import signal
import sys
import time

parent, terminal = pty.fork()
if parent == 0:
    # Where the tests run in the background of a script, SIGINT is ignored, and would stay so.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])


def children():
    threads = os.listdir(f"/proc/{parent}/task")
    return [int(pid) for thread in threads for pid in open(f"/proc/{parent}/task/{thread}/children").read().split()]


def stat(pid):
    """State and processor time, in ticks, of a process; none of one that is gone."""
    try:
        fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
        return fields[0], int(fields[11])
    except FileNotFoundError:
        return "gone", 0


def wait(until, seconds):
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


wait(lambda: any(stat(pid)[1] > 100 for pid in children()), 60)
started = children()
os.write(terminal, b"\x03")
try:
    while os.read(terminal, 4096):
        pass
except OSError:  # The terminal's other side is closed.
    pass
status = os.waitpid(parent, 0)[1]
# Whoever adopts a child collects it; until then it has ended all the same.
wait(lambda: all(stat(pid)[0] in ("gone", "Z") for pid in started), 10)
ended = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
print(f"{ended}, {len(started)} child ended")

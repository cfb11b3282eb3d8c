"""A job that says every moment that it is alive. Arguments: witness file, steps, seconds a step, and maybe ``stray``.

Each line of the witness: task, rank, CLOCK_MONOTONIC. One clock for all processes of a machine, so that two tasks that
were on one GPU at once are found afterwards. With ``stray`` rank 0 leaves a process behind, forked twice, in a session of its
own, with an empty environment, that ignores SIGTERM and says the same for ever.
"""

import os
import signal
import sys
import time

witness, steps, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
task, rank = os.environ["THEMIS_TASK"], os.environ["RANK"]
saved = os.path.join(os.environ["THEMIS_CHECKPOINT_DIR"], "done-" + rank)
at = 0
if os.path.exists(saved):
    with open(saved) as file:
        at = int(file.read())
out = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
if sys.argv[4:] == ["stray"] and rank == "0" and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        beat = (
            "import os, sys, time\n"
            "while True: os.write(int(sys.argv[1]), f'{sys.argv[2]} {time.monotonic()}\\n'.encode()); time.sleep(0.05)"
        )
        os.set_inheritable(out, True)
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", beat, str(out), f"{task} {rank}"], {})
    os._exit(0)
while True:
    os.write(out, f"{task} {rank} {time.monotonic()}\n".encode())
    if at >= steps:
        break
    time.sleep(pause)
    at += 1
    with open(saved + ".new", "w") as file:
        file.write(str(at))
    os.replace(saved + ".new", saved)

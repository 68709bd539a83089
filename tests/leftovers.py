#!/usr/bin/env python3
"""Runs after all other tests: no process, mount, socket or file of theirs may be left.
Cgroups are named by broker: each test looks for those of its own.
usage: leftovers.py BUILD_DIR"""
import glob
import os
import sys
import time

BUILD = os.path.realpath(sys.argv[1])


def processes():
    for path in glob.glob("/proc/[0-9]*/exe"):
        try:
            exe = os.readlink(path)
        except OSError:
            continue
        if exe.startswith(BUILD + "/") and int(path.split("/")[2]) != os.getpid():
            yield "process %s: %s" % (path.split("/")[2], exe)


def mounts():
    with open("/proc/self/mounts") as table:
        for line in table:
            if "/tmp/sandlot-" in line or line.startswith("sandlot "):
                yield "mount " + line.strip()


def files():
    for kind in ("test", "unit", "demo", "bench"):
        yield from ("file " + path for path in glob.glob("/tmp/sandlot-%s-*" % kind))


def look():
    return [found for source in (processes, mounts, files) for found in source()]


left = look()
deadline = time.time() + 10
while left and time.time() < deadline:
    time.sleep(0.1)
    left = look()
print("\n".join(left) if left else "nothing is left")
sys.exit(1 if left else 0)

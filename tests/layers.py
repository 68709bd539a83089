#!/usr/bin/env python3
"""Checks who includes whom, from the real #include lines, against the table below (ARCHITECTURE.md
explains it). Exits 1 and names each line that breaks it."""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# Folder -> folders whose headers it may include, besides its own. The longest matching folder counts.
TABLE = {
    "common": [],
    "agent": ["common"],
    "spawner": ["common"],
    "providers": ["common"],
    "providers/local": ["common", "providers/provider.h", "spawner/protocol.h"],
    "broker/store": ["common"],
    "broker/link": ["common"],
    "broker/access": ["common", "broker/store"],
    "broker/sandbox": ["common", "broker/access/grant.h", "broker/access/identity.h", "broker/link",
                       "broker/store", "providers/provider.h"],
    "broker/rpc": ["common", "broker/access", "broker/sandbox", "providers/provider.h", "broker/store"],
    "broker": ["common", "broker", "spawner", "providers"],
    "clients/c": ["common", "clients/c/include"],
    "clients/cli": ["clients/c/include"],
    "tests": ["common", "broker", "spawner", "providers", "agent", "clients", "tests"],
}
# Generated code, and who may use it.
GENERATED = {
    "sandlot/agent/": ["agent", "broker/link", "broker/sandbox", "tests"],
    "sandlot/store/": ["broker/store", "broker/sandbox", "broker/access", "tests"],
    "sandlot/v1/errors": ["agent", "spawner", "providers", "broker", "clients/c", "tests"],
    "sandlot/v1/": ["broker/rpc", "broker/sandbox", "broker/access", "clients/c", "tests"],
    "grpc/health/": ["broker/rpc", "tests"],
    "grpc/reflection/": ["broker/rpc", "tests"],
    "google/": ["broker/rpc", "broker/sandbox", "clients/c", "tests"],
}
# Libraries that have one home.
HOMES = {
    "grpc/": ["broker/rpc", "broker/broker.c", "clients/c", "tests"],
    "sqlite3.h": ["broker/store/database.c", "tests"],
    "seccomp.h": ["spawner/filter.c"],
    "archive": ["spawner/image.c"],
    "sodium.h": ["broker", "tests"],
}


def below(path, folder):
    return path == folder or path.startswith(folder + "/")


def folder_of(path):
    return max((f for f in TABLE if below(path, f)), key=len, default=None)


def problem(path, included, quoted):
    if quoted:
        for prefix, users in GENERATED.items():
            if included.startswith(prefix) and included.endswith(".pb-c.h"):
                return None if any(below(path, user) for user in users) else "generated code of others"
        if included == "sandlot/sandlot.h":
            return None if below(path, "clients") or below(path, "tests") else "the client's header"
        folder = folder_of(path)
        if below(included, folder) and folder_of(included) == folder:
            return None
        if any(below(included, allowed) for allowed in TABLE[folder]):
            return None
        return "%s may not include it" % folder
    for prefix, homes in HOMES.items():
        if included.startswith(prefix) and not any(below(path, home) for home in homes):
            return "belongs to %s" % homes[0]
    return None


def main():
    broken = checked = 0
    for base, dirs, files in os.walk(ROOT):
        dirs[:] = [d for d in dirs if not d.startswith((".", "build"))]
        for name in files:
            path = os.path.relpath(os.path.join(base, name), ROOT)
            if not name.endswith((".c", ".h")) or folder_of(path) is None:
                continue
            with open(os.path.join(base, name)) as source:
                for number, line in enumerate(source, 1):
                    match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
                    if not match:
                        continue
                    checked += 1
                    why = problem(path, match.group(2), match.group(1) == '"')
                    if why:
                        broken += 1
                        print("%s:%d: %s: %s" % (path, number, match.group(2), why))
    print("layers: %d includes checked, %d broken" % (checked, broken))
    return 1 if broken or not checked else 0


if __name__ == "__main__":
    sys.exit(main())

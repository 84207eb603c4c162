"""A file system on a file, frozen: who writes to it waits in the kernel, in state D, until it thaws."""

from __future__ import annotations

from lab import process, system


def problem():
    """Return why none can be made here; empty where it can be tried."""
    return system.missing("mkfs.ext4", "losetup", "fsfreeze")


def freeze(disk, folder):
    """Mount a file system on the file `disk` at the new `folder`, and freeze it; return why not, if it fails."""
    disk.write_bytes(bytes(16 * 1024 * 1024))
    folder.mkdir()
    for name, *words in (
        ["mkfs.ext4", "-q", "-F", disk],
        ["mount", "-o", "loop", disk, folder],
        ["fsfreeze", "-f", folder],
    ):
        done = process.run([system.path(name), *words])
        if done.returncode:
            if folder.is_mount():
                unmount(folder, lambda: True)
            return f"no file system on a file here: {done.stderr.strip()}"
    return ""


def thaw(folder):
    """Let those go who wait for it."""
    process.run([system.path("fsfreeze"), "-u", folder])


def unmount(folder, is_free):
    """Unmount it once nobody uses it, in 5 s at most; `is_free()` says that nothing does."""
    process.wait_until(lambda: process.run(["umount", folder]).returncode == 0 or is_free(), 5, "a free disk")
    process.run(["umount", "-l", folder])

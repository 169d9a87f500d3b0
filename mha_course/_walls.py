"""What separates a submission from the machine: bubblewrap, or a container of podman or docker."""

from __future__ import annotations

import errno
import io
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
import tarfile
import uuid
from functools import cache
from pathlib import Path

import torch

import attention_check
import mha_lib
from mha_course._messages import message

MEGABYTE = 2**20
MEMORY, PROCESSES = 4096 * MEGABYTE, 220  # of all processes of a submission
_DISK = 500 * MEGABYTE
_COURSE = Path(__file__).parent
_PACKAGES = [Path(str(one.__file__)).parent for one in (attention_check, mha_lib)]
_HIDDEN = [_COURSE / "exercises", _COURSE / "in_page"]  # what is expected
_HOME = "/submission"
_SERVE = "from mha_course._judged import main; main()"
# A container gets the course from the grader, so that an image need not be of the same version.
# With docker's --workdir nobody but its root could write there.
_UNPACK = f"""import io, os, sys, tarfile
os.chdir("{_HOME}")
from multiprocessing.connection import Connection
sent = Connection(os.dup(0), writable=False).recv_bytes()
tarfile.open(fileobj=io.BytesIO(sent)).extractall("/course")
"""


def alone(folder: str) -> tuple[list[str], dict[str, str]]:
    """The command of a submission's process and its environment, without walls."""
    return [sys.executable, "-P", "-c", _SERVE, ""], _environment(folder)


def _environment(folder: str) -> dict[str, str]:
    """A clean environment: nothing of the grader's own is in it."""
    places = [str(_COURSE.parent), *(str(one.parent) for one in _PACKAGES)]
    found = dict.fromkeys(["HOME", "TMPDIR", "IPYTHONDIR", "MPLCONFIGDIR"], folder)
    found |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONDONTWRITEBYTECODE": "1"}
    found |= {"MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return found | {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


# ------------------------------------------------------------------ bubblewrap


def behind_bubblewrap(filter_file: int) -> tuple[list[str], dict[str, str]]:
    """The same behind walls: it sees Python, its packages and an empty folder, and nothing else.

    Into the file that is given, open for reading and writing, goes what bubblewrap has the kernel refuse.
    """
    program = refused_calls(os.uname().machine)
    os.pwrite(filter_file, program, 0)
    walls = (
        [*_walls()[:-1], "--seccomp", f"{filter_file}", "--"] if program else _walls()
    )
    return [*walls, sys.executable, "-P", "-c", _SERVE, "isolated"], _environment(_HOME)


# Calls that reach through walls: locks and leases of files that others read, and what a user has little of.
# Machine -> its number in the kernel, that of `fcntl`, that of `socket`, and those of flock, inotify_init and
# its successor, add_key, request_key, keyctl, io_uring_setup, bpf, ptrace, io_setup and fanotify_init.
_CALLS = {
    "x86_64": (
        0xC000003E,
        72,
        41,
        (73, 253, 294, 248, 249, 250, 425, 321, 101, 206, 300),
    ),
    "aarch64": (0xC00000B7, 25, 198, (32, 26, 217, 218, 219, 425, 280, 117, 0, 262)),
}
_LOAD, _EQUAL, _LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
# F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW and F_SETLEASE of `fcntl`; AF_VSOCK of `socket`.
_COMMANDS, _FAMILIES = (6, 7, 37, 38, 1024), (40,)
_ALLOWED, _NO_SUCH_CALL = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def refused_calls(machine: str) -> bytes:
    """The program by which the kernel refuses these calls, as if it had none; empty for other machines."""
    if machine not in _CALLS:
        return b""
    architecture, control, socket, calls = _CALLS[machine]
    # Numbers from here on are those of another interface to the same calls.
    tests = [(_LEAST, 0x40000000), *((_EQUAL, call) for call in calls)]
    partly = [(control, 24, _COMMANDS), (socket, 16, _FAMILIES)]
    # Where it refuses; jumps count from the next place.
    last = 4 + len(tests) + sum(3 + len(values) for _, _, values in partly)
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 0, last - 2, architecture), (_LOAD, 0, 0, 0)]
    for operation, number in tests:
        code.append((operation, last - len(code) - 1, 0, number))
    for call, argument, values in partly:
        code += [(_EQUAL, 0, len(values) + 2, call), (_LOAD, 0, 0, argument)]
        for value in values:
            code.append((_EQUAL, last - len(code) - 1, 0, value))
        code.append((_RETURN, 0, 0, _ALLOWED))
    code += [(_RETURN, 0, 0, _ALLOWED), (_RETURN, 0, 0, _NO_SUCH_CALL)]
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def _walls() -> list[str]:
    packages = [sysconfig.get_paths()[name] for name in ("purelib", "platlib")]
    packages.append(str(Path(torch.__file__).parent.parent))  # a .pth may lead there
    homes = sys.prefix, sys.base_prefix, Path(sys.executable).resolve().parent.parent
    # What lies beside these in the folder of an environment may be submissions and grades.
    parts = "bin lib lib64 pyvenv.cfg".split()
    python = [Path(home, part) for home in homes for part in parts]
    system = "/usr /bin /lib /lib32 /lib64 /etc/ld.so.cache /etc/fonts".split()
    found = "bwrap --unshare-all --unshare-user --die-with-parent --new-session".split()
    found += "--cap-drop ALL".split()
    found += ["--disable-userns"] * _forbids_more()  # in another one, it could mount
    for path in [*system, *python, *packages, *_PACKAGES, _COURSE]:
        found += ["--ro-bind-try", str(path), str(path)]
    for hidden in map(str, _HIDDEN):
        found += ["--tmpfs", hidden, "--remount-ro", hidden]
    # A file in it that belongs to root, such as a setting of the kernel, would be root's to change.
    found += "--proc /proc --ro-bind-try /dev/null /proc/keys".split()
    found += "--remount-ro /proc --dev /dev".split()
    for folder in ("/dev/shm", _HOME):  # noqa: S108 (nobody shares it)
        found += f"--size {_DISK} --tmpfs {folder}".split()
    found += ["--remount-ro", "/dev"]  # it would hold as much as memory does
    return [*found, *f"--remount-ro / --chdir {_HOME} --".split()]


@cache
def _forbids_more() -> bool:
    """Whether this bubblewrap, of version 0.8 or later, can forbid further user namespaces."""
    said = subprocess.run(["bwrap", "--help"], capture_output=True).stdout
    return b"--disable-userns" in said


@cache
def can_isolate() -> bool:
    """Whether bubblewrap is there and allowed to work."""
    if shutil.which("bwrap") is None:
        return False
    command = [*_walls(), sys.executable, "-c", ""]
    return subprocess.run(command, capture_output=True).returncode == 0


# ------------------------------------------------------------------ containers


class Container:
    """A container of an image, in which podman or docker runs a submission.

    Args:
        image: its name; its recipe is the file `Containerfile` beside this module.
        seconds: after which it ends, even if the grader was killed.
    """

    def __init__(self, image: str, seconds: float) -> None:
        self.engine, self.name = _needed_engine(), f"mha-course-{uuid.uuid4().hex}"
        self.command = [self.engine, "run", "--rm", "--interactive", "--name"]
        self.command += [self.name, *_limits(), image]
        # The first process of a container cannot be killed from inside, and takes all others with it.
        self.command += f"timeout -s KILL {seconds:.0f} python -P -c".split()
        self.command += [_UNPACK + _SERVE, ""]

    def end(self) -> None:
        """End all that runs in it, and remove it, which `--rm` does only some time later."""
        for how in (["kill"], ["rm", "--force"]):
            subprocess.run([self.engine, *how, self.name], capture_output=True)


def _limits() -> list[str]:
    """The options: no network, no file of this machine, nothing that stays, limits of all that it takes."""
    found = "--pull never --log-driver none --network none --read-only".split()
    found += "--cap-drop ALL --security-opt no-new-privileges --user 65534".split()
    found += f"--memory {MEMORY} --memory-swap {MEMORY}".split()
    found += f"--pids-limit {PROCESSES} --shm-size {_DISK}".split()
    found += "--ulimit nofile=100 --ulimit nproc=4000 --ulimit core=0".split()
    for folder in (_HOME, "/course", "/tmp"):  # noqa: S108 (nobody shares it)
        found += ["--tmpfs", f"{folder}:size={_DISK},mode=1777"]
    given = _environment(_HOME) | {"PYTHONPATH": "/course"}
    del given["PATH"]  # the image knows where its Python is
    # Both programs would hand on the proxies of this machine, with passwords.
    for name in ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy"):
        given |= {name: "", name.upper(): ""}
    for name, value in given.items():
        found += ["--env", f"{name}={value}"]
    return found


def _needed_engine() -> str:
    if engine := shutil.which("podman") or shutil.which("docker"):
        return engine
    raise ValueError(message(__file__, "no-engine"))


def check_container(image: str) -> None:
    """Raise a ValueError unless a container of the image can run submissions."""
    needed = "cloudpickle, psutil, sys, torch"
    code = f"import {needed}; print(*sys.version_info[:2], sep='.')"
    engine = _needed_engine()
    command = [engine, "run", "--rm", *_limits(), image, "python", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        error = (done.stderr.strip().splitlines() or [""])[-1]
        words = {"engine": Path(engine).name, "image": image, "error": error}
        raise ValueError(message(__file__, "no-image", **words))
    ours, theirs = ".".join(map(str, sys.version_info[:2])), done.stdout.strip()
    if ours != theirs:
        words = {"image": image, "theirs": theirs, "ours": ours}
        raise ValueError(message(__file__, "other-python", **words))


@cache
def course() -> bytes:
    """The course as the process of a submission may have it, as a tar file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for package in [*_PACKAGES, _COURSE]:
            for path in sorted(package.rglob("*")):
                hidden = "__pycache__" in path.parts or set(path.parents) & {*_HIDDEN}
                if path.is_file() and not hidden:
                    tar.add(path, path.relative_to(package.parent))
    return file.getvalue()

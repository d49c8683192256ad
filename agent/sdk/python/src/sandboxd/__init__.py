"""Sandboxes for agents: run commands, answer their questions, keep their state.

    from sandboxd import Sandbox

    with Sandbox.create("web") as sbx:
        result = sbx.run("apt-get install cowsay")
        if result.waiting:  # Do you want to continue? [Y/n]
            result = sbx.type("y")
        print(result.exit_code, result.output)
        print(sbx.exec(["python3", "-c", "print(1)"]).text)

`sandboxd.aio` has the same with async and await.
"""

from ._files import FileInfo
from ._sandbox import CreateOptions
from ._session import Phase, ShowScreen
from ._sync import Files, Gateway, Sandbox, Session
from .errors import (
    Busy,
    Denied,
    Error,
    Exists,
    Limit,
    Lost,
    NotFound,
    Timeout,
    Unavailable,
    Usage,
)
from .results import ExecResult, Process, Result, SandboxInfo, Screen

__version__ = "0.1.0"

__all__ = [
    "Busy",
    "CreateOptions",
    "Denied",
    "Error",
    "ExecResult",
    "Exists",
    "FileInfo",
    "Files",
    "Gateway",
    "Limit",
    "Lost",
    "NotFound",
    "Phase",
    "Process",
    "Result",
    "Sandbox",
    "SandboxInfo",
    "Screen",
    "Session",
    "ShowScreen",
    "Timeout",
    "Unavailable",
    "Usage",
]

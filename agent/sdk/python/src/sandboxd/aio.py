"""The package with async and await.

    from sandboxd.aio import Sandbox

    async with await Sandbox.create("web") as sbx:
        result = await sbx.run("echo hello")

Objects are of the event loop in which they were made. A call that is cancelled stops waiting; a
command that it ran in a session continues, and one of `exec` gets HUP.
"""

from ._files import FileInfo, Files
from ._sandbox import CreateOptions, Gateway, Sandbox
from ._session import Phase, Session, ShowScreen

__all__ = [
    "CreateOptions",
    "FileInfo",
    "Files",
    "Gateway",
    "Phase",
    "Sandbox",
    "Session",
    "ShowScreen",
]

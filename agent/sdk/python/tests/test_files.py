from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from sandboxd import Denied, Error, Limit, NotFound, Sandbox, Usage


def test_read_and_write(shared: Sandbox) -> None:
    files, data = shared.files, bytes(range(256)) * 5000
    files.write("/tmp/new/dir/ü ä\n.bin", data, mode=0o750)
    assert files.read("/tmp/new/dir/ü ä\n.bin") == data
    info = files.stat("/tmp/new/dir/ü ä\n.bin")
    assert (info.name, info.size, info.mode, info.is_dir) == ("ü ä\n.bin", len(data), 0o750, False)
    files.write("/tmp/new/dir/ü ä\n.bin", "")
    assert files.read_text("/tmp/new/dir/ü ä\n.bin") == ""
    assert [i.name for i in files.list_dir("/tmp/new")] == ["dir"]
    with pytest.raises(Error):
        files.remove("/tmp/new")  # it is not empty
    files.remove("/tmp/new", recursive=True)
    assert not files.exists("/tmp/new")


def test_relative_paths_are_of_the_home_directory(shared: Sandbox) -> None:
    shared.files.write("here.txt", "x")
    assert shared.exec("cat ~/here.txt").text == "x"


@pytest.mark.parametrize("call", ["read", "stat", "remove", "list_dir"])
def test_missing(shared: Sandbox, call: str) -> None:
    with pytest.raises(NotFound, match="/no/such"):
        getattr(shared.files, call)("/no/such")


def test_errors_of_both_sides(shared: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        shared.files.get("/no/such", tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        shared.files.put(tmp_path / "nothing", "/tmp/x")
    with pytest.raises(Error):
        shared.files.read("/tmp")
    with pytest.raises((Denied, Error)):
        shared.files.write("/proc/version", "x")


def test_directories_there_and_back(shared: Sandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub" / "empty").mkdir(parents=True)
    (source / "a.txt").write_text("a")
    (source / "sub" / "run").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "sub" / "run").chmod(0o755)
    (source / "link").symlink_to("a.txt")
    shared.files.put(source, "/tmp/copied/to")
    assert shared.exec("cd /tmp/copied/to && sub/run && cat link && ls -d sub/empty").ok
    (source / "b.txt").write_text("b")
    shared.files.put(source, "/tmp/copied/to")  # merged, and not below it
    assert shared.files.read_text("/tmp/copied/to/b.txt") == "b"
    assert not shared.files.exists("/tmp/copied/to/source")
    shared.files.get("/tmp/copied/to", tmp_path / "back")
    got = sorted(str(p.relative_to(tmp_path / "back")) for p in (tmp_path / "back").rglob("*"))
    assert got == ["a.txt", "b.txt", "sub", "sub/empty", "sub/run"]
    assert os.access(tmp_path / "back" / "sub" / "run", os.X_OK)


def test_nothing_outside_is_written(shared: Sandbox, tmp_path: Path) -> None:
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (target / "dir").symlink_to(outside)
    (target / "file").symlink_to(outside / "file")
    shared.exec("mkdir -p /tmp/bad/dir && echo x | tee /tmp/bad/dir/in /tmp/bad/file")
    with pytest.raises(Error, match="symbolic link"):
        shared.files.get("/tmp/bad", target)
    shared.exec("rm -r /tmp/bad/dir")
    shared.files.get("/tmp/bad", target)
    assert (target / "file").read_text() == "x\n" and not (target / "file").is_symlink()
    assert list(outside.iterdir()) == []


def test_large_file(shared: Sandbox, tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    with (tmp_path / "large").open("wb") as f:
        for _ in range(64):
            f.write(block)
    shared.files.put(tmp_path / "large", "/tmp/large")
    want = hashlib.sha256(block * 64).hexdigest()
    assert shared.exec("sha256sum /tmp/large").text.split()[0] == want
    shared.files.get("/tmp/large", tmp_path / "back")
    assert hashlib.sha256((tmp_path / "back").read_bytes()).hexdigest() == want
    shared.files.remove("/tmp/large")


def test_limit_of_read(shared: Sandbox) -> None:
    shared.files.write("/tmp/ten", "0123456789")
    assert shared.files.read("/tmp/ten", max_bytes=10) == b"0123456789"
    with pytest.raises(Limit, match="9 bytes"):
        shared.files.read("/tmp/ten", max_bytes=9)
    with pytest.raises(Limit):
        shared.files.read("/dev/zero", max_bytes=1 << 20)


def test_names_that_are_no_utf8(shared: Sandbox, tmp_path: Path) -> None:
    shared.exec(r"mkdir -p /tmp/odd && cd /tmp/odd && echo 1 > $(printf 'a\377b')")
    (info,) = shared.files.list_dir("/tmp/odd")
    assert os.fsencode(info.name) == b"a\xffb"
    assert shared.files.read(f"/tmp/odd/{info.name}") == b"1\n"
    shared.files.get("/tmp/odd", tmp_path / "odd")
    assert os.listdir(os.fsencode(tmp_path / "odd")) == [b"a\xffb"]


@pytest.mark.parametrize("mode", ["755", 7.5, b"755"])
def test_what_is_no_mode(shared: Sandbox, mode: Any) -> None:
    with pytest.raises(Usage, match="0o644"):
        shared.files.write("/tmp/no-mode", "x", mode=mode)
    assert not shared.files.exists("/tmp/no-mode")

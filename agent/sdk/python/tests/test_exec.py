from __future__ import annotations

import asyncio
from pathlib import Path
from shlex import quote
from typing import Any

import pytest

from sandboxd import Error, Lost, Sandbox, Timeout, Usage, aio
from sandboxd._exec import setup


def test_exact_bytes(shared: Sandbox) -> None:
    everything = bytes(range(256)) * 300
    r = shared.exec(["sh", "-c", "cat; echo err >&2; exit 3"], input=everything)
    assert (r.exit_code, r.stdout, r.stderr, r.ok) == (3, everything, b"err\n", False)


def test_words_env_and_directory(shared: Sandbox) -> None:
    r = shared.exec(["printf", "%s|", "a b", "$HOME", "'"])
    assert r.text == "a b|$HOME|'|"
    r = shared.exec("echo $A; pwd", env={"A": "x 'y' $z"}, cwd="/tmp")
    assert r.text == "x 'y' $z\n/tmp\n"


def test_user(shared: Sandbox) -> None:
    r = shared.exec("id -un; echo $A; pwd; exit 4", user="nobody", env={"A": "1"}, cwd="/tmp")
    assert (r.text, r.exit_code) == ("nobody\n1\n/tmp\n", 4)
    with pytest.raises(Error):
        shared.exec("id", user="no such user")


def test_directory_that_is_missing(shared: Sandbox) -> None:
    r = shared.exec("echo no", cwd="/no/such")
    assert r.exit_code != 0 and r.stdout == b"" and b"/no/such" in r.stderr


def test_signal(shared: Sandbox) -> None:
    r = shared.exec("kill -9 $$")
    assert (r.exit_code, r.signal) == (137, "KILL")


def test_timeout_keeps_what_was_printed(shared: Sandbox) -> None:
    with pytest.raises(Timeout) as e:
        shared.exec("echo first; exec sleep 4242", timeout=1)
    assert e.value.stdout == b"first\n" and isinstance(e.value, TimeoutError)
    left = shared.exec("for i in $(seq 50); do pgrep -f 'slee[p] 4242' || exit 0; sleep 0.1; done")
    assert left.stdout.count(b"\n") < 50  # HUP ended it


def test_limit_of_output(shared: Sandbox) -> None:
    r = shared.exec("yes | head -c 1000000", max_output=1000)
    assert len(r.stdout) == 1000 and r.truncated


@pytest.mark.parametrize("command", ["", "  ", [], "a\0b"])
def test_no_command(shared: Sandbox, command: str) -> None:
    with pytest.raises(Usage):
        shared.exec(command)


@pytest.mark.parametrize("name", ["", "A-B", "1A", "A=B", "A\nB"])
def test_names_of_variables(shared: Sandbox, name: str) -> None:
    with pytest.raises(Usage):
        shared.exec("true", env={name: "x"})


def test_file_of_root(shared: Sandbox) -> None:
    shared.exec("install -m 600 /dev/null /tmp/of-root")
    r = shared.exec("cat /tmp/of-root", user="nobody")
    assert r.exit_code != 0 and b"denied" in r.stderr


def test_long_commands(shared: Sandbox) -> None:
    words = ["printf", "%s", *["x" * 65536] * 16]
    r = shared.exec(words, input="unread")
    assert r.ok and r.stdout == b"x" * (1 << 20)
    r = shared.exec(f"cat; : {'y' * 200_000}; exit 5", input="read", env={"A": "1"}, cwd="/tmp")
    assert (r.exit_code, r.text) == (5, "read")
    assert shared.exec("ls -A /tmp | grep '^.sandboxd-'").text == ""
    with pytest.raises(Usage, match="longer"):
        shared.exec(words, user="nobody")


def test_shell_that_warns_before_the_command(shared: Sandbox) -> None:
    wrong = {"LC_ALL": "xx_XX.UTF-8"}
    with Sandbox.create(image=shared.describe().image, env=wrong) as sbx:
        r = sbx.exec("echo hi; echo err >&2", user="root")
    assert (r.text, r.exit_code) == ("hi\n", 0)
    assert r.error_text.endswith("err\n") and "xx_XX" in r.error_text, r.error_text


def test_shell_that_says_too_much_before_the_command(shared: Sandbox) -> None:
    noise = {"BASH_ENV": "/tmp/.noise"}
    with Sandbox.create(image=shared.describe().image, env=noise) as sbx:
        sbx.files.write("/tmp/.noise", "head -c 200000 /dev/zero >&2\n")
        with pytest.raises(Lost, match="may have run"):
            sbx.exec("echo hi", user="root", max_output=10)


def test_user_who_is_unknown_with_a_small_limit(shared: Sandbox) -> None:
    with pytest.raises(Error, match="not in the sandbox") as e:
        shared.exec("echo hi", user="no-such-user", max_output=5)
    assert not isinstance(e.value, Lost)


@pytest.mark.parametrize("most", [0, 5, 10, 40])
def test_limit_of_output_of_a_user(shared: Sandbox, most: int) -> None:
    said = b"1234567890"
    r = shared.exec(f"printf %s {said.decode()} | tee /dev/stderr", user="root", max_output=most)
    assert (r.stdout, r.stderr, r.truncated) == (said[:most], said[:most], most < len(said))


@pytest.mark.parametrize("user", [None, "root"])
def test_code_of_each_signal(shared: Sandbox, user: str | None) -> None:
    for number in (5, 7, 16, 31):
        assert shared.exec(f"kill -{number} $$", user=user).exit_code == 128 + number


@pytest.mark.parametrize("most", [-1, 1.5, None, "9"])
def test_no_limit_of_output(shared: Sandbox, most: Any) -> None:
    with pytest.raises(Usage, match="number of bytes"):
        shared.exec("true", max_output=most)


def test_directories_with_odd_names(shared: Sandbox) -> None:
    shared.exec("mkdir -p /tmp/cd/here/- /tmp/cd/there/sub /tmp/cd/here/sub")
    for name in ("-", "sub"):
        script = quote(setup({}, name) + "pwd")
        r = shared.exec(f"cd /tmp/cd/here && CDPATH=/tmp/cd/there OLDPWD=/ sh -c {script}")
        assert r.text == f"/tmp/cd/here/{name}\n"


def test_variable_that_the_shell_keeps(shared: Sandbox) -> None:
    r = shared.exec("echo ran", env={"UID": "5"})
    assert r.exit_code != 0 and r.stdout == b"" and b"UID" in r.stderr


async def test_sandbox_that_takes_no_file(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(aio.Files, "_open", never)
    async with await aio.Sandbox.connect("shared") as sbx:
        with pytest.raises(Timeout, match="did not take the command"):
            await sbx.exec(": " + "y" * 200_000, timeout=0.5)

from __future__ import annotations

import pytest

from sandboxd import Error, Sandbox, Timeout, Usage


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

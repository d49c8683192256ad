from __future__ import annotations

import pytest

from sandboxd import Busy, Sandbox, Session, Usage


def test_result_of_a_command(session: Session) -> None:
    r = session.run("echo hello; cd /tmp; false")
    assert (r.ended, r.exit_code, r.output, r.cwd) == ("done", 1, "hello\n", "/tmp")
    assert not r.ok and not r.waiting and r.sandbox == "shared" and r.session == session.name
    assert session.run("pwd").output == "/tmp\n"
    assert session.run("true").ok


def test_question_and_answer(session: Session) -> None:
    r = session.run("read -p 'name? ' n; echo hi $n")
    assert (r.ended, r.prompt, r.want, r.waiting) == ("waiting", "name? ", "line", True)
    r = session.answer("bob")
    assert r.ok and r.output.endswith("hi bob\n")
    with pytest.raises(Busy) as e:
        session.answer("bob")
    assert e.value.code == "not_waiting" and e.value.result and e.value.result.ended == "refused"


def test_password(session: Session) -> None:
    r = session.run("read -s -p 'Password: ' p; echo; echo ${#p}")
    assert (r.ended, r.want) == ("waiting", "password")
    r = session.type("hunter22")
    assert r.ok and "hunter22" not in r.output and "8" in r.output


def test_deadline_busy_and_interrupt(session: Session) -> None:
    r = session.run("sleep 100", timeout=2)
    assert r.ended == "deadline" and r.exit_code is None
    with pytest.raises(Busy) as e:
        session.run("true")
    assert e.value.code == "not_prompt" and "sleep" in str(e.value)
    known = e.value.result
    assert known and known.foreground and known.foreground.argv == ["sleep", "100"]
    r = session.interrupt()
    assert r.receipt and r.receipt["steps"] == ["^C"]
    assert session.run("echo $?").output == "130\n"


def test_kill_at_the_deadline(session: Session) -> None:
    assert session.run("sleep 100", timeout=2, kill=True).ended in ("deadline", "interrupted")
    assert session.run("true").ok


def test_keys_and_screen(session: Session) -> None:
    assert session.run("cat", timeout=5).ended in ("waiting", "deadline")
    r = session.keys("a", "b", "Enter", "^D")
    assert r.ended == "done"
    assert "ab" in session.screen().text and session.screen().cols == 120


def test_wait_for_a_phase(session: Session) -> None:
    assert session.run("sleep 2; echo over", timeout=1).ended == "deadline"
    r = session.wait("prompt")
    assert r.phase == "prompt" and "over" in r.output


def test_unfinished_command(session: Session) -> None:
    with pytest.raises(Usage) as e:
        session.run('echo "')
    assert e.value.code == "syntax"
    assert session.run("echo (").exit_code == 2


@pytest.mark.parametrize(("command", "timeout"), [("true", 0), ("true", -1), ("a\0b", 5)])
def test_mistakes_reach_no_session(session: Session, command: str, timeout: float) -> None:
    with pytest.raises(Usage):
        session.run(command, timeout=timeout)


def test_text_beyond_a_frame(session: Session) -> None:
    with pytest.raises(Usage, match="1 MiB"):
        session.run(": " + "x" * (1 << 20))
    assert session.run("true").ok


def test_long_output_and_long_command(session: Session) -> None:
    r = session.run("seq 100000")
    assert r.truncated and r.output.startswith("1\n") and r.output.endswith("100000\n")
    assert session.run("seq 40000", max_output=400_000).output.count("\n") == 40000
    assert session.run("printf %s " + "ü" * 100_000 + " | wc -m").output == "100000\n"


def test_binary_output_is_text(session: Session) -> None:
    assert session.run(r"printf 'a\xffb\n'").output == "a\ufffdb\n"


def test_sessions_are_apart(shared: Sandbox, session: Session) -> None:
    session.run("X=1")
    other = shared.session("other")
    assert other.run('echo "[$X]"').output == "[]\n"
    other.end()
    assert session.run('echo "[$X]"').output == "[1]\n"


def test_shell_that_ends_is_started_again(session: Session) -> None:
    assert session.run("exit 3").ended == "dead"
    r = session.run("echo back")
    assert r.output == "back\n" and "shell_restarted" in r.notes


def test_state_outlives_the_connection(shared: Sandbox, session: Session) -> None:
    session.run("Y=kept")
    session.detach()
    with Sandbox(f"shared~{session.name}") as again:
        assert again.run("echo $Y").output == "kept\n"

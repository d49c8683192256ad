"""Tests of what needs no product: python3 -m unittest scripts/peers/test_judge.py"""

from __future__ import annotations

import hashlib
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from judge import judge, text_holds  # noqa: E402
from peer import Answer, done, from_returncode  # noqa: E402
from play import bound, hint  # noqa: E402

ASKS = {"ended": ["waiting"], "phase": ["waiting"], "want": ["line"], "listens": False, "prompt": {"has": ["name? "]}}


class Judge(unittest.TestCase):
    def test_a_command_that_is_done(self) -> None:
        want = {"ended": ["done"], "phase": ["prompt"], "exit_code": 7, "output": {"is": "x\n"}}
        self.assertEqual(judge(want, done(7, "x"), 1), ([], []))
        told, works = judge(want, done(0, "y"), 1)
        self.assertEqual((len(told), len(works)), (0, 2))

    def test_a_question_that_nobody_tells(self) -> None:
        told, works = judge(ASKS, Answer(ended="deadline", phase="running", output="name?"), 1)
        self.assertEqual((len(told), works), (3, []))

    def test_the_echo_may_be_there_or_not(self) -> None:
        for output in ("Ada\nhello Ada", "hello Ada\n", "\x1b[?2004lhello Ada\r\n"):
            self.assertTrue(text_holds({"is": "Ada\nhello Ada\n"}, output, "Ada"), output)
        self.assertFalse(text_holds({"is": "Ada\nhello Ada\n"}, "hello", "Ada"))

    def test_a_product_that_never_says_attention_is_right_where_there_is_none(self) -> None:
        self.assertEqual(judge({"attention": "no"}, Answer(), 1), ([], []))
        self.assertEqual(len(judge({"attention": "likely"}, Answer(), 1)[0]), 1)

    def test_bytes_with_either_line_end(self) -> None:
        digest = hashlib.sha256(b"a\r\nb\r\n").hexdigest()
        self.assertTrue(text_holds({"sha256": digest, "length": 6}, "a\nb"))
        self.assertFalse(text_holds({"sha256": digest}, "a b"))

    def test_times(self) -> None:
        self.assertEqual(len(judge({"latest_ms": 20}, Answer(), 21)[0]), 1)
        self.assertEqual(judge({"earliest_ms": 20}, Answer(), 21), ([], []))

    def test_which_shell_is_in_front_is_not_compared(self) -> None:
        want = {"ended": ["done"], "exit_code": 0, "depth": 1, "program": "psql"}
        self.assertEqual(judge(want, done(0, ""), 1), ([], []))

    def test_a_field_that_nobody_knows_is_an_error(self) -> None:
        with self.assertRaises(ValueError):
            judge({"colour": "red"}, Answer(), 1)


class Translation(unittest.TestCase):
    def test_a_call_that_ought_to_say_waiting_is_given_less_time(self) -> None:
        self.assertEqual(bound({"do": "run", "want": ASKS}), 10)
        self.assertEqual(bound({"do": "run", "want": {"ended": ["done"]}}), 20)
        self.assertEqual(bound({"do": "run", "timeout_ms": 300, "want": {"ended": ["deadline"]}}), 0.3)

    def test_what_is_known_in_advance(self) -> None:
        known = hint({"do": "run", "want": ASKS})
        self.assertEqual((known.interactive, known.ends, known.expect), (True, False, ["name? "]))

    def test_a_signal_is_told_by_its_name(self) -> None:
        self.assertEqual(from_returncode(-15).signal, "TERM")
        self.assertEqual(from_returncode(3).exit_code, 3)


if __name__ == "__main__":
    unittest.main()

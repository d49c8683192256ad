"""The calls of E2B's code interpreter SDK for Python, each with what it has to answer."""

import base64
import sys
import threading
import time

from e2b import NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import Sandbox
from suite import refused

checks = []


def check(f):
    checks.append(f)
    return f


@check
def value(s):
    x = s.run_code("x = 41\nx + 1")
    assert x.text == "42" and x.error is None and x.logs.stdout == [] and x.execution_count == 1, x
    assert s.run_code("x").text == "41", "variables stay"
    assert s.run_code("'text'").text == "text"
    again = Sandbox.connect(s.sandbox_id)
    assert again.run_code("x").text == "41", "whoever connects has them, too"


@check
def streams(s):
    out, err, results = [], [], []
    x = s.run_code(
        "import sys, time\nprint('one', flush=True)\ntime.sleep(0.3)\nprint('ünï ✓')\nprint('oops', file=sys.stderr)\n7",
        on_stdout=lambda m: out.append((m.line, time.time_ns() - m.timestamp, m.error)),
        on_stderr=lambda m: err.append(m),
        on_result=results.append,
    )
    assert "".join(line for line, _, _ in out) == "one\nünï ✓\n" == "".join(x.logs.stdout) and len(out) >= 2, out
    assert all(abs(late) < 60e9 and not error for _, late, error in out), out
    assert "".join(m.line for m in err) == "oops\n" and err[0].error and [r.text for r in results] == ["7"], (err, results)


@check
def errors(s):
    seen = []
    x = s.run_code("def f():\n    raise ValueError('no luck')\nf()", on_error=seen.append)
    assert (x.error.name, x.error.value) == ("ValueError", "no luck") and "Traceback" in x.error.traceback, x.error
    assert len(seen) == 1 and seen[0].name == "ValueError" and not x.results, seen
    assert s.run_code("1 +").error.name == "SyntaxError"
    assert s.run_code("input('who? ')").error.name == "StdinNotImplementedError", "nobody is there to answer"
    assert s.run_code("1").text == "1"


@check
def results(s):
    x = s.run_code("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()\n5")
    plot = [r for r in x.results if r.png]
    assert len(plot) == 1 and not plot[0].is_main_result and base64.b64decode(plot[0].png).startswith(b"\x89PNG"), x
    assert x.text == "5"
    x = s.run_code(
        "from IPython.display import HTML, JSON, Latex, Markdown, SVG, display\n"
        "display(HTML('<b>b</b>')); display(Markdown('*m*')); display(JSON({'a': [1]})); display(Latex('$x$'))\n"
        "display(SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')); display({'x/y': 'z'}, raw=True)"
    )
    html, markdown, json, latex, svg, other = x.results
    assert (html.html, markdown.markdown, json.json, latex.latex) == ("<b>b</b>", "*m*", {"a": [1]}, "$x$"), x.results
    assert svg.svg.startswith("<svg") and other.extra == {"x/y": "z"}, (svg, other.extra)
    x = s.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})")
    assert "<table" in x.results[0].html and x.results[0].is_main_result and "a" in x.text, x.results


@check
def contexts(s):
    c = s.create_code_context(cwd="/tmp")
    assert (c.language, c.cwd) == ("python", "/tmp"), c
    assert s.run_code("import os; y = 1; os.getcwd()", context=c).text == "/tmp"
    assert s.run_code("y").error.name == "NameError", "contexts are apart"
    assert {x.id: x.cwd for x in s.list_code_contexts()} == {c.id: "/tmp", "e2b": "/root"}
    s.restart_code_context(c)
    x = s.run_code("import os; print(os.getcwd()); y", context=c)
    assert x.error.name == "NameError" and x.logs.stdout == ["/tmp\n"] and x.logs.stderr == [], x
    s.remove_code_context(c.id)
    assert [x.id for x in s.list_code_contexts()] == ["e2b"]
    for f in (lambda: s.run_code("1", context=c), lambda: s.remove_code_context(c), lambda: s.restart_code_context(c.id), lambda: s.remove_code_context("main")):
        e = refused("a context that is gone", NotFoundException, f)
        assert "not found" in str(e), e
    e = refused("a directory that is not there", NotFoundException, lambda: s.create_code_context(cwd="/not/there"))
    assert "/not/there" in str(e) and len(s.list_code_contexts()) == 1, e


@check
def languages(s):
    for f in (lambda: s.run_code("1", language="javascript"), lambda: s.create_code_context(language="r")):
        e = refused("a language", NotFoundException, f)
        assert "not supported" in str(e) and "commands.run" in str(e), e
    assert s.run_code("1", language="python").text == "1"


@check
def files(s):
    s.files.write("data.csv", "a,b\n1,2\n")
    assert s.run_code("open('data.csv').read()").text.startswith("a,b"), "code begins where files of no directory are"
    s.run_code("open('out.txt', 'w').write('written')")
    assert s.files.read("out.txt") == "written" and s.commands.run("cat out.txt").stdout == "written"


@check
def environment(s):
    code = "import os; print(os.environ.get('GREETING'), os.environ.get('ONCE'), os.environ.get('HOME'))"
    assert s.run_code(code, envs={"ONCE": "a'b\"\\ü😀\n", "HOME": "/x"}).logs.stdout == ["hello a'b\"\\ü😀\n /x\n"]
    assert s.run_code(code).logs.stdout == ["hello None /root\n"], "they are gone with the call"
    before = s.run_code("1").execution_count
    assert s.run_code("1/0", envs={"ONCE": "1"}).error.name == "ZeroDivisionError"
    assert s.run_code("1", envs={"ONCE": "1"}).execution_count == before + 2


@check
def timeouts(s):
    began = time.monotonic()
    e = refused("code that lasts", TimeoutException, lambda: s.run_code("kept = 1\nwhile True: pass", timeout=0.7))
    assert "Execution timed out" in str(e) and time.monotonic() - began < 10, e
    assert s.run_code("kept").text == "1", "it was interrupted, and its variables are there"


@check
def queue(s):
    texts = []
    threads = [threading.Thread(target=lambda: texts.append(s.run_code("import time; time.sleep(0.2); 3").text)) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert texts == ["3"] * 3, texts


@check
def large(s):
    got = [0]

    def count(m):
        got[0] += len(m.line)

    x = s.run_code("for _ in range(200): print('x' * 99_999)", on_stdout=count)
    assert got[0] == 20_000_000 and x.error is None, (got, x.error)


@check
def death(s):
    x = s.run_code("import os; print('last', flush=True); os._exit(3)")
    assert x.error and x.error.name == "KernelDied", x
    x = s.run_code("import os; print(os.getcwd()); 'x' in globals()")
    assert x.text == "False" and x.logs.stdout == ["/root\n"], x
    x = s.run_code("import os, signal; print('a', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    assert x.error.name == "KernelDied" and s.run_code("2").text == "2", x


def absent():
    """An image without Python says what to do."""
    with Sandbox.create("small", timeout=60) as small:
        for f in (lambda: small.run_code("1"), lambda: small.create_code_context(), lambda: small.list_code_contexts()):
            e = refused("an image without Python", NotFoundException, f)
            assert "no python3" in str(e) and "sandboxd/python" in str(e), e
    refused("code in one that is gone", TimeoutException, lambda: small.run_code("1"))
    refused("contexts of one that is gone", TimeoutException, lambda: small.list_code_contexts())


def ended():
    """Code whose sandbox ends under it."""
    s = Sandbox.create(timeout=60)
    s.run_code("1")
    threading.Timer(0.5, s.kill).start()
    try:
        x = s.run_code("import time; time.sleep(100)")
        assert x.error and x.error.name == "KernelDied", x
    except SandboxException:
        pass


def main():
    s = Sandbox.create(timeout=300, envs={"GREETING": "hello"})
    try:
        assert s.get_info().template_id == "code-interpreter-v1"
        for f in checks:
            began = time.monotonic()
            f(s)
            print(f"ok {f.__name__} {time.monotonic() - began:.2f} s", flush=True)
    finally:
        s.kill()
    absent()
    ended()


if __name__ == "__main__":
    sys.exit(main())

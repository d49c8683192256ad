"""Programs that speak Jupyter's protocol, as they come: jupyter_client itself; AutoGen's client, and Open WebUI's, by what each of them sends. ADDRESS TOKEN NAME."""

import json
import sys
import time
import uuid

import httpx
import websocket
from jupyter_kernel_client import JupyterKernelClient

address, token, name = sys.argv[1:]
base = f"{address}/jupyter/{name}"
ws_base = base.replace("http", "ws", 1)


def execute(ws, code):
    """What a call prints and shows, until its kernel is idle."""
    id = uuid.uuid4().hex
    ws.send(json.dumps({
        "header": {"msg_id": id, "msg_type": "execute_request", "username": "user", "session": uuid.uuid4().hex, "date": "", "version": "5.3"},
        "parent_header": {}, "metadata": {}, "channel": "shell",
        "content": {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False, "stop_on_error": True},
    }))
    said = []
    while True:
        m = json.loads(ws.recv())
        if m["parent_header"].get("msg_id") != id:
            continue
        c = m["content"]
        match m["msg_type"]:
            case "stream":
                said.append(c["text"])
            case "execute_result" | "display_data":
                said.append("png" if "image/png" in c["data"] else c["data"]["text/plain"])
            case "error":
                said.append(c["ename"])
            case "status" if c["execution_state"] == "idle":
                return said


def autogen():
    """AutoGen's JupyterClient: a header with each request, on a socket, too."""
    h = {"Authorization": f"token {token}"}
    c = httpx.Client(headers=h, timeout=60)
    assert "python3" in c.get(f"{base}/api/kernelspecs").json()["kernelspecs"]
    kernel = c.post(f"{base}/api/kernels", json={"name": "python3"}).json()["id"]
    assert [k["id"] for k in c.get(f"{base}/api/kernels").json()] == [kernel]
    ws = websocket.create_connection(f"{ws_base}/api/kernels/{kernel}/channels", header=h, timeout=60)
    assert execute(ws, "x = 41") == [] and execute(ws, "x + 1") == ["42"]
    assert execute(ws, "print('ü'); 1/0") == ["ü\n", "ZeroDivisionError"]
    assert execute(ws, "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")[-1] == "png"
    assert len(execute(ws, "print('x' * 3_000_000)")[0]) > 100_000
    assert c.post(f"{base}/api/kernels/{kernel}/restart").status_code == 200
    ws.close()
    ws = websocket.create_connection(f"{ws_base}/api/kernels/{kernel}/channels", header=h, timeout=60)
    assert execute(ws, "x") == ["NameError"]
    ws.close()
    assert c.delete(f"{base}/api/kernels/{kernel}").status_code == 204
    assert c.get(f"{base}/api/kernels").json() == []
    gone = c.get(f"{base}/api/kernels/{kernel}")
    assert gone.status_code == 404 and gone.headers["content-type"] == "application/json", gone.headers
    try:
        websocket.create_connection(f"{ws_base}/api/kernels/{kernel}/channels", header=h, timeout=60)
        raise AssertionError("a socket of a kernel that is gone")
    except websocket.WebSocketBadStatusException as e:
        assert e.status_code == 404, e


def jupyter_client():
    """jupyter_client, whose channels jupyter_kernel_client carries to a server. It would send a token in the URL; a header of its caller's it sends as it is."""
    with JupyterKernelClient(server_url=base, token=None, headers={"Authorization": f"token {token}"}) as k:
        r = k.execute("x = 41; print('hello'); x + 1")
        assert r["status"] == "ok" and [o.get("text") or o["data"]["text/plain"] for o in r["outputs"]] == ["hello\n", "42"], r
        r = k.execute("1/0")
        assert r["status"] == "error" and r["outputs"][0]["ename"] == "ZeroDivisionError", r
        r = k.execute("import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()")
        assert "image/png" in r["outputs"][-1]["data"], r
        assert "x" in [v["name"] for v in k.list_variables()]
        k.restart()
        heard(k)
        assert k.execute("x")["outputs"][0]["ename"] == "NameError"
    assert httpx.get(f"{base}/api/kernels", headers={"Authorization": f"token {token}"}).json() == []


def heard(k):
    """Wait until the output of a restarted kernel arrives.

    Jupyter's answer to a restart waits for the kernel's shell channel only. The channel of its output connects again on its
    own time, and what the kernel prints before that is lost, whoever is between client and server.
    """
    for _ in range(10):
        try:
            return k.execute("pass", timeout=3)
        except TimeoutError:
            pass
    raise AssertionError("a restarted kernel prints nothing")


def open_webui():
    """Open WebUI's JupyterCodeExecuter with a password, which is a token: a cookie, and what the cookie says in a header."""
    c = httpx.Client(timeout=60)
    r = c.get(f"{base}/login").raise_for_status()
    xsrf = r.cookies["_xsrf"]
    c.headers["X-XSRFToken"] = xsrf
    assert c.post(f"{base}/login", data={"_xsrf": xsrf, "password": "wrong"}).status_code == 401
    c.post(f"{base}/login", data={"_xsrf": xsrf, "password": token}).raise_for_status()
    kernel = c.post(f"{base}/api/kernels").raise_for_status().json()["id"]
    h = {"Cookie": "; ".join(f"{k}={v}" for k, v in c.cookies.items()), **c.headers}
    h.pop("accept-encoding", None), h.pop("connection", None)
    ws = websocket.create_connection(f"{ws_base}/api/kernels/{kernel}/channels", header=h, timeout=60)
    assert execute(ws, "6 * 7") == ["42"]
    assert execute(ws, "import os; os.getcwd()") == ["'/mnt/data'"], "it names no directory, and has the one of all code"
    ws.close()
    c.delete(f"{base}/api/kernels/{kernel}").raise_for_status()
    del c.headers["X-XSRFToken"]
    assert c.get(f"{base}/api/kernels").status_code == 401, "a cookie alone is what a page of others could have sent, too"


def refused():
    h = {"Authorization": f"token {token}"}
    for path, status in {"": 404, "/": 404, "/lab": 404, "/tree": 404, "/files/x": 404, "/static/x.js": 404, "/api/../lab": 404, "/api/%2e%2e/lab": 404, "/api/spec.yaml": 502}.items():
        # Written out: a client would make the path another one.
        r = httpx.get(httpx.URL(base).copy_with(raw_path=f"/jupyter/{name}{path}".encode()), headers=h)
        assert r.status_code == status, (path, r)
        assert "text/html" not in r.headers["content-type"], (path, r.headers)
    r = httpx.get(f"{base}/api/status", headers=h)
    assert r.status_code == 200 and "kernels" in r.json() and r.headers["x-content-type-options"] == "nosniff", r
    assert r.headers["content-security-policy"].startswith("sandbox") and "set-cookie" not in r.headers and "server" not in r.headers, r.headers
    r = httpx.get(f"{base}/api/status?token={token}")
    assert r.status_code == 400 and "password" in r.text, r.text


for f in (jupyter_client, autogen, open_webui, refused):
    began = time.monotonic()
    f()
    print(f"ok {f.__name__} {time.monotonic() - began:.2f} s", flush=True)

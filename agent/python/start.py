# Runs in the sandbox with a JSON object as argument. It finds the Jupyter server of this user, or
# starts one, and prints one JSON object with its socket. The server outlives this script and ends
# after the idle time.
import sys

# Without the working directory: a secrets.py in it belongs to the user.
sys.path = [p for p in sys.path if p]
import fcntl, importlib.util, json, os, secrets, signal, socket, stat, subprocess, time

ask = json.loads(sys.argv[1])
home = "/tmp/.sandboxd-python-%d" % os.getuid()
sock, info, log = home + "/jupyter.sock", home + "/server.json", home + "/log"


def say(**answer):
    print(json.dumps(answer))
    sys.exit(0)


def answers():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect(sock)
        return True
    except OSError:
        return False
    finally:
        s.close()


def noted():
    try:
        with open(info) as f:
            return json.load(f)
    except (OSError, ValueError):
        return None


def runs(pid):
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as f:
            words = f.read().split(b"\0")
            return b"jupyter_server" in words and b"--sock=" + sock.encode() in words
    except OSError:
        return False


before = os.umask(0o077)
try:
    os.mkdir(home)
except FileExistsError:
    pass
found = os.lstat(home)
if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
    say(error="%s: not a private directory of this user" % home)
lock = open(home + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)  # concurrent callers start one server
late = time.monotonic() + 75
server = noted()
# The start script of a starting server may have been killed: wait for the server.
while server and not answers() and runs(server["pid"]):
    if time.monotonic() > late:
        os.kill(server["pid"], signal.SIGKILL)
    time.sleep(0.01)
if server and answers():
    say(**server)

missing = [m for m in ("jupyter_server", "ipykernel") if importlib.util.find_spec(m) is None]
if missing:
    say(missing=missing)
where = ask["dir"]
try:
    os.makedirs(where, mode=0o777, exist_ok=True)
    if not os.access(where, os.W_OK):
        raise OSError("not writable")
except OSError:
    where = os.path.expanduser("~")
for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
    # Its start script was killed before it stored the token, which is lost: kill the server.
    while runs(pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        time.sleep(0.01)
for stale in (sock, info):
    if os.path.lexists(stale):
        os.unlink(stale)
idle = ask["idle"]
token = secrets.token_hex(16)
options = {
    "--sock": sock,
    "--sock-mode": "0600",
    "--ServerApp.root_dir": where,
    "--ServerApp.jpserver_extensions": "{}",
    # Drop no output: the client keeps its head and tail.
    "--ServerApp.limit_rate": "False",
    "--ZMQChannelsWebsocketConnection.limit_rate": "False",  # name since 2.0
    # Seconds until a dead kernel is detected.
    "--KernelRestarter.time_to_dead": "0.25",
    # Seconds that a kernel may take to start, on a busy machine, too.
    "--MappingKernelManager.kernel_info_timeout": "45",
    # Seconds that a kernel may take to end before it is killed.
    "--KernelManager.shutdown_wait_time": "1",
}
if idle > 0:
    options["--MappingKernelManager.cull_idle_timeout"] = str(idle)
    options["--MappingKernelManager.cull_interval"] = str(max(1, min(60, idle // 4)))
    options["--MappingKernelManager.cull_connected"] = "True"
    options["--ServerApp.shutdown_no_activity_timeout"] = str(idle)
# Other programs may ask the server for a kernel without a directory. It starts in the server's
# directory and then changes to this one.
begin = "import os\nif os.getcwd() == %r:\n    try:\n        os.chdir(%r)\n    except OSError:\n        os.chdir('/')\n" % (home, where)
spec = home + "/share/kernels/python3"
os.makedirs(spec, exist_ok=True)
with open(spec + "/kernel.json", "w") as f:
    json.dump({"display_name": "Python 3", "language": "python", "metadata": {"debugger": True}, "argv": [
        sys.executable, "-c", begin + ask["kernel"], "-f", "{connection_file}",
        # kernel.py captures the output.
        "--IPKernelApp.capture_fd_output=False",
        # Do not wait for late output: with kernel.py there is none before the status idle.
        "--IPythonKernel._execute_sleep=0",
        # %history has the calls of this kernel, without a file to write and sync for each call.
        "--HistoryManager.hist_file=:memory:"]}, f)
env = dict(os.environ, JUPYTER_TOKEN=token, JUPYTER_RUNTIME_DIR=home + "/run", JUPYTER_PATH=home + "/share")
with open(log, "w") as out:
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"] + ["%s=%s" % o for o in options.items()],
        cwd=home,  # -m imports modules from it: a random.py in the directory of code is the user's
        env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, umask=before,
        # The server inherits the lock and holds it until its process can be found.
        close_fds=False)
answer = {"sock": sock, "token": token, "dir": where, "pid": server.pid}
with open(info + ".new", "w") as f:
    json.dump(answer, f)
os.replace(info + ".new", info)
late = time.monotonic() + 75
while not answers():
    if server.poll() is not None or time.monotonic() > late:
        server.kill()
        with open(log, errors="replace") as f:
            say(error="jupyter_server did not start: " + f.read()[-1000:].strip())
    time.sleep(0.01)
say(**answer)

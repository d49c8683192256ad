package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/sandbox/session/track/corpus"
)

// moreAskers are further programs that ask, of package managers.
var moreAskers = []program{
	// npm has timers that run while it asks.
	{name: "npm init", slow: true, listens: true, setUp: "mkdir -p /tmp/soak-npm",
		open: []step{{run: "cd /tmp/soak-npm && rm -f package.json && npm init",
			question: "package name: "}, {typed: "p{n}", question: "version: "},
			{typed: "1.0.{n}", question: "description: "}},
		end: []step{{keys: []string{"^C"}}}},
	{name: "pip uninstall", slow: true, setUp: "pip3 install -q --no-cache-dir six",
		open: []step{{run: "pip3 uninstall --disable-pip-version-check six",
			question: "Proceed (Y/n)? "}},
		end: []step{{typed: "n", has: ""}}},
	{name: "ssh host key", setUp: "command -v sshd >/dev/null || " +
		"apt-get install -y -qq --no-install-recommends openssh-server >/dev/null; " +
		"mkdir -p /run/sshd; pgrep -x sshd >/dev/null || /usr/sbin/sshd -p 2022",
		open: []step{{run: "ssh -o UserKnownHostsFile=/dev/null -p 2022 soak@localhost",
			question: "(yes/no/[fingerprint])? "}},
		end: []step{{typed: "no", has: "verification failed"}}},
	{name: "ssh password", setUp: "id soak >/dev/null 2>&1 || useradd soak; mkdir -p /run/sshd; " +
		"pgrep -x sshd >/dev/null || /usr/sbin/sshd -p 2022",
		open: []step{{run: "ssh -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null " +
			"-o LogLevel=ERROR -o NumberOfPasswordPrompts=2 -p 2022 soak@localhost",
			question: "password: "}, {typed: "wrong-{n}", question: "password: "}},
		end: []step{{typed: "wrong-{n}", has: "denied"}}},
}

// move is one action of a full-screen program: keys or text, and what the screen shows when the
// program needs a person again. Text without shows is followed by keys, and nothing is judged in
// between.
type move struct {
	keys  []string
	typed string // without Enter
	shows string
}

// play is a full-screen program.
type screenPlay struct {
	name   string
	blocks bool // it waits for keys and does nothing else
	setUp  string
	run    string
	shows  string
	moves  []move
	quit   []string
}

// screenPlays are full-screen programs whose script says when they need a person.
var screenPlays = []screenPlay{
	{name: "vim", run: "rm -f /tmp/soak-vim; vim -u NONE -N /tmp/soak-vim", shows: "[New]",
		moves: []move{{keys: []string{"i"}, shows: "-- INSERT --"}, {typed: "one"},
			{keys: []string{"Escape"}, shows: "one"},
			{typed: ":sleep 2 | echo 'slept'"}, {keys: []string{"Enter"}, shows: "\nslept"},
			{typed: ":!sleep 1; echo built"}, {keys: []string{"Enter"}, shows: "Press ENTER"},
			{keys: []string{"Enter"}, shows: "one"}}, quit: []string{":", "q", "!", "Enter"}},
	{name: "nano", blocks: true, run: "nano --ignorercfiles /tmp/soak-nano", shows: "New File",
		moves: []move{{typed: "two"}, {keys: []string{"^X"}, shows: "Save modified buffer"},
			{keys: []string{"^C"}, shows: "two"}, {keys: []string{"^O"}, shows: "File Name to Write"},
			{keys: []string{"^C"}, shows: "Cancelled"}}, quit: []string{"^X", "n"}},
	// The texts must not be in the command, which the terminal shows.
	{name: "whiptail", blocks: true,
		setUp: "printf '%s\\n' \"whiptail --yesno 'Install the package?' 8 40\" " +
			"'sleep 1' \"whiptail --inputbox 'Name of the host' 8 40\" 'sleep 1' " +
			"\"whiptail --msgbox 'It is done' 8 40\" >/tmp/soak-whiptail",
		run:   "sh /tmp/soak-whiptail",
		shows: "Install the package?",
		moves: []move{{keys: []string{"Enter"}, shows: "Name of the host"}, {typed: "web"},
			{keys: []string{"Enter"}, shows: "It is done"}}, quit: []string{"Enter"}},
}

// screens records full-screen programs.
func (r *recorder) screens(ctx context.Context, want *regexp.Regexp, o options) error {
	installed := false
	for range o.rounds {
		for _, p := range screenPlays {
			if !want.MatchString(p.name) {
				continue
			}
			if !installed {
				installed = true
				if err := r.w.setUp(ctx, "installing editors", "apt-get update -qq; apt-get "+
					"install -y -qq --no-install-recommends vim nano whiptail >/dev/null"); err != nil {
					return err
				}
			}
			if p.setUp != "" {
				if err := r.w.exec(ctx, p.setUp); err != nil {
					return fmt.Errorf("setup of %s: %w", p.name, err)
				}
			}
			class := corpus.Listens
			if p.blocks {
				class = corpus.Blocks
			}
			s, err := r.begin(ctx, p.name, class)
			if err != nil {
				return err
			}
			err = s.screenPlay(ctx, p)
			if err := s.end(ctx, err); err != nil {
				return err
			}
		}
	}
	return nil
}

// screenPlay plays a full-screen program.
func (s *scene) screenPlay(ctx context.Context, p screenPlay) error {
	if err := s.until(ctx, agent.Call{Command: p.run}, p.shows); err != nil {
		return err
	}
	for _, m := range p.moves {
		if err := s.move(ctx, m); err != nil {
			return err
		}
	}
	s.sends(corpus.Working)
	_, err := s.sh.Do(ctx, agent.Call{Keys: p.quit, Timeout: callTime})
	return err
}

// move makes one move.
func (s *scene) move(ctx context.Context, m move) error {
	if m.shows == "" {
		s.sends("")
		_, err := s.sh.Do(ctx, agent.Call{Text: m.typed, Raw: true, Timeout: 5 * time.Second})
		return err
	}
	return s.until(ctx, agent.Call{Text: m.typed, Raw: m.typed != "", Keys: m.keys}, m.shows)
}

// lookTime is how often the screen is read: a label may be that late.
const lookTime = 25 * time.Millisecond

// until makes a call and waits until the screen shows text, from when on a person is needed, and
// then for graceTime.
func (s *scene) until(ctx context.Context, call agent.Call, text string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*callTime)
	defer cancel()
	before, err := s.sh.Screen(ctx)
	if err != nil {
		return err
	}
	s.sends(corpus.Working)
	calling, stop := context.WithCancel(ctx)
	defer stop()
	returned := make(chan error, 1)
	call.Timeout = callTime
	go func() { // ends with calling
		res, err := s.sh.Do(calling, call)
		for err == nil && calling.Err() == nil &&
			(res.Ended == agent.EndedAttention || res.Ended == agent.EndedWaiting) {
			// Another verdict may come later, or would with another version: the session must
			// be watched all the time.
			res, err = s.sh.Wait(calling, agent.PhasePrompt, agent.PhaseDead)
		}
		returned <- err
	}()
	for {
		if time.Since(s.upTo) > pieceTime {
			if err := s.fetch(ctx); err != nil {
				return err
			}
		}
		screen, err := s.sh.Screen(ctx)
		if err != nil {
			return fmt.Errorf("%q: %w", text, err)
		}
		// The same text may be on the screen before.
		if strings.Contains(screen.Text, text) && screen.Offset > before.Offset {
			s.asks(screen.Offset)
			break
		}
		if err := pause(ctx, lookTime); err != nil {
			return fmt.Errorf("%q is not on the screen: %w: %q", text, err, screen.Text)
		}
	}
	if err := pause(ctx, graceTime); err != nil {
		return err
	}
	stop()
	<-returned //nolint:errcheck // the end of the wait is not of interest
	return nil
}

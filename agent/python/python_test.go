package python_test

import (
	"bytes"
	"errors"
	"fmt"
	"image/png"
	"strings"
	"testing"

	"github.com/sandboxd/sandboxd/agent"
	"github.com/sandboxd/sandboxd/agent/python"
)

// Calls of one context share variables, contexts do not. Each call returns its own output in order.
func TestExecute(t *testing.T) {
	c := fresh(t, python.Options{})
	if res := execute(t, c, "x = 41"); !res.OK || res.Ended != agent.EndedDone ||
		len(res.Outputs) != 0 {
		t.Errorf("an assignment: %+v", res)
	}
	if res := execute(t, c, "x + 1"); !res.OK || len(res.Outputs) != 1 ||
		res.Outputs[0].Type != python.Value ||
		res.Outputs[0].Text("text/plain") != "42" {
		t.Errorf("x + 1: %+v", res)
	}
	res := execute(
		t, c, "import sys\nprint('a'); sys.stdout.flush(); print('b', file=sys.stderr); "+
			"sys.stderr.flush(); print('c'); 1/0",
	)
	if res.OK || res.Ended != agent.EndedDone || res.Error == nil ||
		res.Error.Name != "ZeroDivisionError" ||
		len(res.Error.Traceback) == 0 {
		t.Errorf("a division by zero: %+v", res)
	}
	var kinds []string
	for _, o := range res.Outputs {
		kinds = append(kinds, string(o.Type)+" "+o.Chars)
	}
	if got := strings.Join(kinds, "|"); got != "stdout a\n|stderr b\n|stdout c\n|error " {
		t.Errorf("outputs: %q", got)
	}
	if res := execute(t, c, "x"); !res.OK { // not rejected because of the earlier exception
		t.Errorf("right after an exception: %+v", res)
	}
	if res := execute(t, fresh(t, python.Options{}), "x"); res.Error == nil ||
		res.Error.Name != "NameError" {
		t.Errorf("x in another context: %+v", res)
	}
	if got := execute(t, c, "import os; print(os.getcwd())").Text(); got != python.DataDir+"\n" {
		t.Errorf("working directory %q", got)
	}
}

// A plot is a PNG. It is listed with its size, and can be fetched.
func TestPlot(t *testing.T) {
	c := fresh(t, python.Options{})
	var streamed []python.Output
	res, err := c.Execute(
		bounded(t),
		python.Call{
			Code:   "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()",
			Output: func(o python.Output) { streamed = append(streamed, o) },
		},
	)
	if err != nil || !res.OK || len(res.Outputs) != 1 || res.Outputs[0].Type != python.Display {
		t.Fatalf("%+v, %v", res, err)
	}
	picture, err := png.Decode(bytes.NewReader(res.Outputs[0].Bytes("image/png")))
	if err != nil || picture.Bounds().Dx() < 100 {
		t.Errorf("the plot: %v", err)
	}
	images := c.Images()
	if len(images) != 1 || images[0].ID != res.Outputs[0].Image || images[0].Type != "image/png" ||
		images[0].Size != len(res.Outputs[0].Bytes("image/png")) {
		t.Fatalf("images: %+v", images)
	}
	if i, ok := c.Image(images[0].ID); !ok || len(i.Data) != i.Size {
		t.Errorf("image %s: %v", images[0].ID, ok)
	}
	if len(streamed) != 1 || streamed[0].Image != images[0].ID {
		t.Errorf("as it came: %d outputs", len(streamed))
	}
}

// input() and getpass return as waiting, and can be answered.
func TestInput(t *testing.T) {
	c := fresh(t, python.Options{})
	if _, err := c.Answer(bounded(t), "early"); !errors.Is(
		err,
		&agent.Error{Code: agent.CodeNotWaiting},
	) {
		t.Errorf("an answer that nobody asked for: %v", err)
	}
	res := execute(
		t, c, "name = input('who? '); import getpass; word = getpass.getpass('word: '); "+
			"print(name, word)",
	)
	if res.Ended != agent.EndedWaiting || res.Prompt != "who? " || res.Password {
		t.Fatalf("%+v", res)
	}
	if _, err := c.Execute(bounded(t), python.Call{Code: "1"}); !errors.Is(
		err,
		&agent.Error{Code: agent.CodeNotPrompt},
	) {
		t.Errorf("a call while another one waits: %v", err)
	}
	if res, err := c.Answer(bounded(t), "ann"); err != nil || res.Ended != agent.EndedWaiting ||
		res.Prompt != "word: " ||
		!res.Password {
		t.Fatalf("%+v, %v", res, err)
	}
	if res, err := c.Answer(bounded(t), "secret"); err != nil || !res.OK ||
		res.Text() != "ann secret\n" {
		t.Errorf("%+v, %v", res, err)
	}
}

// Output before a question is passed before it. Output while no call runs is passed by the next
// call.
func TestInputOrder(t *testing.T) {
	c := fresh(t, python.Options{})
	var passed strings.Builder
	call := python.Call{
		Code: "import sys, threading\nfor i in range(20): print('before', i, end=' '); " +
			"input(str(i))",
		Output: func(o python.Output) { passed.WriteString(o.Chars) },
	}
	res, err := c.Execute(bounded(t), call)
	for i := range 20 {
		if want := fmt.Sprintf("before %d ", i); err != nil || res.Ended != agent.EndedWaiting ||
			res.Prompt != fmt.Sprint(i) ||
			passed.String() != want {
			t.Fatalf("question %d: %q was passed, %+v, %v", i, passed.String(), res, err)
		}
		passed.Reset()
		res, err = c.Answer(bounded(t), "")
	}
	if err != nil || !res.OK {
		t.Fatalf("%+v, %v", res, err)
	}
	asked, said := "/tmp/asked-"+newID(), "/tmp/said-"+newID()
	call.Code = fmt.Sprintf(
		"import threading, os, time\ndef say():\n  while not os.path.exists(%q): "+
			"time.sleep(0.01)\n  print('meanwhile', flush=True); open(%q, 'w')\nw = "+
			"threading.Thread(target=say); w.start(); input(); w.join()",
		asked,
		said,
	)
	if res, err = c.Execute(bounded(t), call); err != nil || res.Ended != agent.EndedWaiting ||
		passed.Len() > 0 {
		t.Fatalf("%q was passed, %+v, %v", passed.String(), res, err)
	}
	exit, err := sharedClient(
		t,
	).Exec(bounded(t), agent.Cmd{Command: "touch " + asked + "; until [ -e " + said +
		" ]; do sleep 0.1; done"})
	if err != nil || exit.Code != 0 {
		t.Fatal(exit, err)
	}
	if res, err = c.Answer(bounded(t), ""); err != nil || !res.OK ||
		passed.String() != "meanwhile\n" {
		t.Fatalf("%q was passed, %+v, %v", passed.String(), res, err)
	}
}

// A missing package of the image is an error with a hint.
func TestMissing(t *testing.T) {
	needPython(t)
	for image, what := range map[string]string{"sandboxd/busybox": "no python3",
		"sandboxd/base": "jupyter_server and ipykernel"} {
		_, err := python.Open(bounded(t), dial(t, boot(t, image)), python.Options{})
		var e *agent.Error
		if !errors.As(err, &e) || e.Code != agent.CodeUnavailable ||
			!strings.Contains(e.Message, what) ||
			!strings.Contains(e.Hint, "--image sandboxd/python") {
			t.Errorf("%s: %v", image, err)
		}
	}
}

package python

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/semaphore"

	"github.com/sandboxd/sandboxd/agent"
)

// shower is a kernel that displays data in every call.
func shower(data string) func(context.Context, *websocket.Conn) {
	return func(ctx context.Context, c *websocket.Conn) {
		greet(ctx, c)
		for id := asked(ctx, c); id != ""; id = asked(ctx, c) {
			// without another copy
			if w, err := c.Writer(ctx, websocket.MessageText); err == nil {
				_, _ = io.WriteString(
					w,
					`{"header": {"msg_type": "display_data"}, "parent_header": {"msg_id": "`+id+
						`"}, "channel": "iopub", "content": `,
				)
				for rest := data; err == nil && rest != ""; {
					n := min(len(rest), 64<<10)
					_, err = io.WriteString(w, rest[:n])
					rest = rest[n:]
				}
				_, _ = io.WriteString(w, "}")
				_ = w.Close()
			}
			tell(ctx, c, id, "status", "iopub", `{"execution_state": "idle"}`)
			tell(ctx, c, id, "execute_reply", "shell", `{"status": "ok"}`)
		}
	}
}

// picture returns a display of that size.
func picture(size int) string {
	return `{"data": {"image/png": "iVBORw0KGgoA` + strings.Repeat("A", size&^3) + `"}}`
}

// heap returns the used heap memory.
func heap() int64 {
	runtime.GC()
	runtime.GC() // free the pools of buffers
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Twenty contexts display large data to callers that do not read it. The process holds data up to
// its limit, and drops and counts the rest. Small messages still arrive, and all memory is released
// at the end.
func TestRoom(t *testing.T) {
	const size, most = 3 << 20, 32 << 20
	all := semaphore.NewWeighted(most)
	data := picture(size)
	var contexts []*Context
	var small *Context
	for i := range 5 {
		in := fakeOf(t, nil, shower(data), nil)
		in.room = newRoom(all)
		in.room.patience = 2 * time.Second // longer than this process stalls
		for j := range 4 {
			c, err := in.Context(t.Context(), fmt.Sprintf("c%d-%d", i, j))
			if err != nil {
				t.Fatal(err)
			}
			contexts = append(contexts, c)
		}
	}
	in := fakeOf(t, nil, shower(picture(30<<10)), nil) // small enough not to count
	in.room = newRoom(all)
	small, err := in.Context(t.Context(), "small")
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	taking, took := make(
		chan struct{},
	), make(
		chan int,
		len(contexts),
	) // 1 for a call that receives its display, 0 for another
	results := make([]Result, len(contexts))
	var calls sync.WaitGroup
	for i, c := range contexts {
		calls.Go(func() {
			passed := sync.OnceFunc(func() { took <- 1 })
			res, err := c.Execute(
				t.Context(),
				Call{
					Code:    "show()",
					Timeout: 5 * time.Minute,
					Passing: true,
					Output:  func(Output) { passed(); <-taking },
				},
			)
			if err != nil || !res.OK {
				t.Errorf("call %d: %s, %s, %v", i, res.Ended, res.Why, err)
			}
			if results[i] = res; res.Dropped > 0 {
				took <- 0
			}
		})
	}
	held := 0
	for range contexts {
		held += <-took
	}
	if used := heap() - before; held == 0 || held > most/copies/size || used > most+(8<<20) {
		t.Errorf("%d messages are held, of %d MiB", held, used>>20)
	}
	if res, err := small.Execute(t.Context(),
		Call{Code: "show()", Timeout: time.Minute}); err != nil ||
		len(res.Outputs) != 1 ||
		res.Dropped != 0 {
		t.Errorf("a small one meanwhile: %+v, %v", res, err)
	}
	close(taking)
	calls.Wait()
	dropped := 0
	for i, res := range results {
		dropped += res.Dropped
		if len(res.Outputs) > 0 || res.Dropped > 0 && res.Omitted < size {
			t.Errorf(
				"call %d: %d outputs, %d dropped, %d bytes left out",
				i,
				len(res.Outputs),
				res.Dropped,
				res.Omitted,
			)
		}
	}
	if held+dropped != len(contexts) {
		t.Errorf("%d are held and %d dropped, of %d", held, dropped, len(contexts))
	}
	if res, err := contexts[0].Execute(t.Context(),
		Call{Code: "show()", Timeout: time.Minute}); err != nil ||
		res.Dropped != 0 ||
		len(res.Outputs) != 1 {
		t.Errorf("afterwards: %d outputs, %d dropped, %v", len(res.Outputs), res.Dropped, err)
	}
	for _, c := range append(contexts, small) {
		c.disconnect()
	}
	if !all.TryAcquire(most) {
		t.Error("room is taken that nobody has")
	}
}

// A message for which there is no memory holds none while the rest of it arrives.
func TestRoomIsLeftAtOnce(t *testing.T) {
	all := semaphore.NewWeighted(4 << 20)
	begin := func(kernel func(context.Context, *websocket.Conn)) *Context {
		t.Helper()
		in := fakeOf(t, nil, kernel, nil)
		in.room = newRoom(all)
		in.room.patience = time.Millisecond
		c, err := in.Context(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	dropping, rest := make(chan struct{}), make(chan struct{})
	slow := begin(func(ctx context.Context, c *websocket.Conn) {
		greet(ctx, c)
		asked(ctx, c)
		if w, err := c.Writer(ctx, websocket.MessageText); err == nil {
			_, _ = io.WriteString(w, strings.Repeat(" ", 16<<20)) // more than there is memory for
			close(dropping)
			<-rest
			_ = w.Close()
		}
	})
	quick := begin(shower(picture(500 << 10)))
	ctx, cancel := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	calls.Go(func() { _, _ = slow.Execute(ctx, Call{Code: "show()"}) })
	<-dropping
	res, err := quick.Execute(t.Context(), Call{Code: "show()", Timeout: time.Minute})
	if err != nil || res.Dropped > 0 {
		t.Errorf("another message: %d dropped, %v", res.Dropped, err)
	}
	close(rest)
	cancel()
	calls.Wait()
}

// The output of a call counts only while the call runs.
func TestRoomOfCalls(t *testing.T) {
	const most = 5 << 20
	all := semaphore.NewWeighted(most)
	end := make(chan struct{})
	in := fake(t, func(ctx context.Context, c *websocket.Conn) {
		greet(ctx, c)
		id := asked(ctx, c)
		for range 6 {
			tell(ctx, c, id,
				"display_data",
				"iopub",
				picture(1<<20),
			) // needs a buffer of 2 MiB, which counts twice
		}
		<-end
		tell(ctx, c, id, "status", "iopub", `{"execution_state": "idle"}`)
		tell(ctx, c, id, "execute_reply", "shell", `{"status": "ok"}`)
		_ = asked(ctx, c)
	}, nil)
	in.room = newRoom(all)
	c, err := in.Context(t.Context(), "main")
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	res, err := c.Execute(
		t.Context(),
		Call{Code: "show()", Timeout: time.Minute, Output: func(Output) {
			if passed++; passed == 6 {
				close(end)
			}
		}},
	)
	if err != nil || res.Ended != agent.EndedDone || !res.OK || passed != 6 ||
		len(res.Outputs) != 1 ||
		res.Dropped != 5 {
		t.Errorf(
			"%s: %d passed, %d kept, %d dropped, %v",
			res.Ended,
			passed,
			len(res.Outputs),
			res.Dropped,
			err,
		)
	}
	c.disconnect()
	if !all.TryAcquire(most) {
		t.Error("room is taken that nobody has")
	}
}

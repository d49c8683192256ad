package person

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// One worker does a person's jobs, in order, and stays while more follow.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var did []string
		q := newJobs(func(j job) {
			<-time.After(time.Millisecond)
			did = append(did, string(j.input))
		})
		works := func() bool {
			q.mu.Lock()
			defer q.mu.Unlock()
			return q.working
		}
		for _, key := range []string{"a", "b", "c"} {
			if !q.add(job{input: []byte(key)}) {
				t.Fatalf("%s is dropped", key)
			}
			<-time.After(linger / 2)
			if !works() {
				t.Errorf("after %s the worker has gone", key)
			}
		}
		<-time.After(linger)
		synctest.Wait()
		if works() {
			t.Error("the worker never ends")
		}
		q.add(job{input: []byte("d")})
		q.add(job{input: []byte("e")}) // while d is done
		q.add(job{input: []byte("f")})
		<-time.After(time.Second)
		synctest.Wait()
		if want := []string{"a", "b", "c", "def"}; !slices.Equal(did, want) &&
			!slices.Equal(did, []string{"a", "b", "c", "d", "ef"}) {
			t.Errorf("done were %q, want %q", did, want)
		}
		began := time.Now()
		q.close()
		if took := time.Since(began); took > 0 {
			t.Errorf("closing an idle one took %v", took)
		}
		if q.add(job{input: []byte("g")}) {
			t.Error("a closed one takes more")
		}
	})
}

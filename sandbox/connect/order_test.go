package connect

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/sandboxd/sandboxd/sandbox/wire"
)

// TestSetUser sends the user after hello, and returns the error of the guest.
func TestSetUser(t *testing.T) {
	refusal := func(code wire.Code, message string) []byte {
		answer, err := json.Marshal(wire.ControlReply{Version: 1,
			Error: &wire.Error{Code: code, Message: message}})
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	for _, tt := range []struct {
		name   string
		answer []byte // to the order user; nil refuses every order
		want   error
	}{
		{"done", helloReply, nil},
		{"no such user", refusal(wire.CodeNotFound, "user x"),
			&wire.Error{Code: wire.CodeNotFound}},
		{"older guest", refusal(wire.CodeUnavailable, "this guest does not know how to \"user\""),
			&wire.Error{Code: wire.CodeUnavailable}},
		{"not a guest", nil, ErrNoGuest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var orders []wire.Control
			s := newServer(t, func(s *testServer) {
				s.order = func(order wire.Control) (bool, []byte) {
					orders = append(orders, order)
					if order.Do == "user" || tt.answer == nil {
						return tt.answer != nil, append([]byte{}, tt.answer...)
					}
					return true, helloReply
				}
			})
			conn, err := SSH(t.Context(), s.peer(t))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetUser(t.Context(), "x:7"); !errors.Is(err, tt.want) {
				t.Errorf("got error %v, want %v", err, tt.want)
			}
			if last := orders[len(orders)-1]; tt.answer != nil &&
				(last.Do != "user" || last.User != "x:7") {
				t.Errorf("got order %+v", last)
			}
		})
	}
}

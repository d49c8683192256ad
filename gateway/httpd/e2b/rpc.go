package e2b

import (
	"context"
	"io"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/go-json-experiment/json"

	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
)

// maxMessage limits one message of a client. The SDKs split longer input, and files use other
// routes.
const maxMessage = 4 << 20

// codec is the SDKs' JSON, which is protobuf's. It ignores unknown fields and rejects duplicate
// ones.
type codec struct{}

func (codec) Name() string                  { return "json" }
func (codec) Marshal(v any) ([]byte, error) { return json.Marshal(v) }
func (codec) Unmarshal(text []byte, v any) error {
	return rest.Unmarshal(text, v)
}

// options returns the options of all procedures. There is no compression, since a small message may
// unpack to a large one.
func options() []connect.HandlerOption {
	return []connect.HandlerOption{connect.WithCodec(codec{}), connect.WithReadMaxBytes(maxMessage),
		connect.WithCompression("gzip", nil, nil)}
}

// router registers handlers of requests to a sandbox.
type router struct {
	mux      *http.ServeMux
	places   *places
	problems *problems
}

func (rt *router) handle(pattern string, h http.Handler) {
	rt.mux.Handle(pattern, rt.places.inside(h))
}

// envd serves requests to a sandbox.
func (s *Server) envd(mux *http.ServeMux) {
	rt := &router{mux, s.places, s.problems}
	rt.handle("GET /health", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	files := &fileAPI{s.problems}
	rt.handle("GET /files", http.HandlerFunc(files.download))
	rt.handle("POST /files", http.HandlerFunc(files.upload))

	pa := &processAPI{&terminals{s.hub, s.places}}
	unary(rt, "/process.Process/List", pa.listProcesses)
	unary(rt, "/process.Process/Update", pa.update)
	unary(rt, "/process.Process/SendInput", pa.sendInput)
	unary(rt, "/process.Process/SendSignal", pa.sendSignal)
	unary(rt, "/process.Process/CloseStdin", pa.closeStdin)
	serverStream(rt, "/process.Process/Start", pa.startProcess)
	serverStream(rt, "/process.Process/Connect", pa.connectProcess)
	clientStream(rt, "/process.Process/StreamInput", pa.streamInput)

	unary(rt, "/filesystem.Filesystem/Stat", statFile)
	unary(rt, "/filesystem.Filesystem/MakeDir", makeDir)
	unary(rt, "/filesystem.Filesystem/Move", moveFile)
	unary(rt, "/filesystem.Filesystem/ListDir", listDir)
	unary(rt, "/filesystem.Filesystem/Remove", removeFile)
	unary(rt, "/filesystem.Filesystem/CreateWatcher", createWatcher)
	unary(rt, "/filesystem.Filesystem/GetWatcherEvents", watcherEvents)
	unary(rt, "/filesystem.Filesystem/RemoveWatcher", removeWatcher)
	serverStream(rt, "/filesystem.Filesystem/WatchDir", watchDir)
}

// empty is a message without fields.
type empty struct{}

// unary serves a procedure with one answer.
func unary[Req, Res any](rt *router, procedure string,
	f func(context.Context, *visit, *Req) (*Res, error)) {
	h := connect.NewUnaryHandler(procedure,
		func(ctx context.Context, req *connect.Request[Req]) (*connect.Response[Res], error) {
			res, err := f(ctx, visitOf(ctx), req.Msg)
			if err != nil {
				return nil, rt.problems.rpcError(err)
			}
			return connect.NewResponse(res), nil
		}, options()...)
	rt.handle("POST "+procedure, timely(h))
}

// clientStream serves a procedure with a stream of requests.
func clientStream[Req any](rt *router, procedure string,
	f func(context.Context, *visit, *connect.ClientStream[Req]) error) {
	h := connect.NewClientStreamHandler(
		procedure, func(ctx context.Context, in *connect.ClientStream[Req]) (
			*connect.Response[empty], error) {
			if err := f(ctx, visitOf(ctx), in); err != nil {
				return nil, rt.problems.rpcError(err)
			}
			return connect.NewResponse(&empty{}), nil
		}, options()...)
	rt.handle("POST "+procedure, h)
}

// serverStream serves a procedure with a stream of answers. say also sends a keepalive at the
// interval that the client asks for.
func serverStream[Req, Res any](rt *router, procedure string,
	f func(ctx context.Context, v *visit, req *Req, say *sender[Res]) error) {
	h := connect.NewServerStreamHandler(
		procedure, func(ctx context.Context, req *connect.Request[Req],
			out *connect.ServerStream[Res]) error {
			arrived(ctx)
			v := visitOf(ctx)
			leave, err := v.stream()
			if err != nil {
				return rt.problems.rpcError(err)
			}
			defer leave()
			return rt.problems.rpcError(f(ctx, v, req.Msg,
				&sender[Res]{out: out, every: pingInterval(req.Header())}))
		}, options()...)
	rt.handle("POST "+procedure, timely(h))
}

// defaultPing is the longest interval of keepalives.
const defaultPing = 90 * time.Second

func pingInterval(h http.Header) time.Duration {
	seconds, err := time.ParseDuration(h.Get("Keepalive-Ping-Interval") + "s")
	if err != nil || seconds < time.Second {
		return defaultPing
	}
	return min(seconds, defaultPing)
}

// sender sends a stream of answers.
type sender[Res any] struct {
	out   *connect.ServerStream[Res]
	every time.Duration
}

// each sends messages from next, and alive when next is silent, up to and including the last
// message.
func (y *sender[Res]) each(ctx context.Context, next <-chan *Res, alive *Res,
	last func(*Res) bool) error {
	ping := time.NewTicker(y.every)
	defer ping.Stop()
	for {
		var say *Res
		select {
		case say = <-next:
		case <-ping.C:
			say = alive
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := y.out.Send(say); err != nil {
			return err
		}
		ping.Reset(y.every)
		if last(say) {
			return nil
		}
	}
}

// timedBody is a request's body that must arrive within rest.BodyTime.
type timedBody struct {
	io.ReadCloser
	arrived func()
}

func (b timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.arrived()
	}
	return n, err
}

type arrivedKey struct{}

// timely wraps next for requests whose body is one message.
func timely(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		// The writers of some tests have no deadline.
		_ = c.SetReadDeadline(time.Now().Add(rest.BodyTime))
		clear := func() {
			if r.Context().Err() == nil { // otherwise the guard has set a deadline
				_ = c.SetReadDeadline(time.Time{})
			}
		}
		r = r.WithContext(context.WithValue(r.Context(), arrivedKey{}, clear))
		r.Body = timedBody{r.Body, clear}
		next.ServeHTTP(w, r)
	})
}

// arrived removes the deadline of the body: the request has arrived.
func arrived(ctx context.Context) {
	if f, ok := ctx.Value(arrivedKey{}).(func()); ok {
		f()
	}
}

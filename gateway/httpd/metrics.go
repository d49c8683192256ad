package httpd

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sandboxd/sandboxd/gateway/httpd/agentrun"
	"github.com/sandboxd/sandboxd/gateway/httpd/rest"
	"github.com/sandboxd/sandboxd/gateway/lifecycle"
)

// metrics are what /metrics tells. No label of theirs is anything that a client or a sandbox chose: each has a few values that are known
// before, so that nobody fills the memory of whoever collects them, or writes lines into it.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec   // by route and status
	took     *prometheus.HistogramVec // by route
	refused  *prometheus.CounterVec   // by reason
	calls    *prometheus.CounterVec   // of agentrun, by status
	callTook prometheus.Histogram
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_http_requests_total", Help: "Requests that were let in and answered."}, []string{"route", "status"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "sandboxd_http_request_seconds", Help: "How long they took, streams until their end.",
			Buckets: []float64{.001, .01, .1, 1, 10, 100}}, []string{"route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_http_refused_total", Help: "Requests that were not let in."}, []string{"reason"}),
		calls:   prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_run_calls_total", Help: "Calls of POST /v1/run/ that were answered."}, []string{"status"}),
		callTook: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sandboxd_run_call_seconds", Help: "How long they took, waiting for their turn included.",
			Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100}}),
	}
	for _, reason := range refusals {
		m.refused.WithLabelValues(reason)
	}
	for _, status := range []agentrun.Status{agentrun.OK, agentrun.Failed, agentrun.TimedOut, agentrun.OOMKilled, agentrun.Refused} {
		m.calls.WithLabelValues(string(status))
	}
	m.registry.MustRegister(m.requests, m.took, m.refused, m.calls, m.callTook,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// refusals are why a request is not let in, by the status that it is answered with.
var refusals = map[int]string{http.StatusUnauthorized: "token", http.StatusForbidden: "origin", http.StatusMisdirectedRequest: "host", http.StatusTooManyRequests: "rate", 0: "other"}

// refuse counts a request that was not let in.
func (m *metrics) refuse(err error) {
	if m == nil {
		return
	}
	reason, ok := refusals[rest.Status(err)]
	if !ok {
		reason = refusals[0]
	}
	m.refused.WithLabelValues(reason).Inc()
}

// answered counts one that was. route is the pattern that it met: what it asked for is its client's.
func (m *metrics) answered(route string, status int, took time.Duration) {
	if m == nil {
		return
	}
	if route == "" || route == "/" {
		route = "none"
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.took.WithLabelValues(route).Observe(took.Seconds())
}

// call counts a call of agentrun.
func (m *metrics) call(status agentrun.Status, took time.Duration) {
	m.calls.WithLabelValues(string(status)).Inc()
	m.callTook.Observe(took.Seconds())
}

// serve answers whoever may know what the hub counts.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	counts, err := s.hub.Counts(rest.Principal(r.Context()))
	if err != nil {
		rest.Fail(w, r, s.hub, err)
		return
	}
	now := prometheus.NewRegistry()
	now.MustRegister(counted(counts))
	promhttp.HandlerFor(prometheus.Gatherers{s.metrics.registry, now}, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// counted is what the hub counts, as metrics.
type counted lifecycle.Counts

func metric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sandboxd_"+name, help, labels, nil)
}

var (
	sandboxesNow    = metric("sandboxes", "Sandboxes of all owners; warm ones stand ready.", "state")
	sessionsNow     = metric("sessions", "Sessions that live.")
	partlyNow       = metric("sessions_recorded_partly", "Sessions of which not all is on record.")
	needsNow        = metric("sessions_needing", "Sessions that need a person.", "needs")
	carriedNow      = metric("networks_carried", "Sandboxes whose connections the daemon carries.")
	bootsTotal      = metric("boots_total", "Sandboxes that a backend booted, or could not.", "result")
	claimsTotal     = metric("claims_total", "Sandboxes that stood ready and were taken, or did not answer then.", "result")
	connectionTotal = metric("connections_total", "Connections of sandboxes, by what became of them.", "what")
	limitedTotal    = metric("connections_limited_total", "Connections of sandboxes that were refused because there were too many, by whose.", "limit")
	openNow         = metric("connections_open", "Connections of all sandboxes to the outside that are open.")
	bytesTotal      = metric("connection_bytes_total", "Bytes of connections that have ended.", "direction")
	droppedTotal    = metric("events_dropped_total", "Events of sandboxes that the store was too slow for.")
	noticesTotal    = metric("hook_notices_total", "Notices of what sessions need, by what became of them.", "result")
)

// Describe says nothing: what there is follows from what is collected.
func (c counted) Describe(chan<- *prometheus.Desc) {}

// Collect is prometheus.Collector's.
func (c counted) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	for state, n := range c.Sandboxes {
		gauge(sandboxesNow, n, string(state))
	}
	for need, n := range c.Needs {
		gauge(needsNow, n, string(need))
	}
	gauge(sessionsNow, c.Sessions)
	gauge(partlyNow, c.Partly)
	gauge(carriedNow, c.Carried)
	counter(bootsTotal, c.Boots-c.BootsFailed, "ok")
	counter(bootsTotal, c.BootsFailed, "failed")
	counter(claimsTotal, c.Claims, "ok")
	counter(claimsTotal, c.ClaimsFailed, "failed")
	for kind, n := range c.Connections {
		counter(connectionTotal, n, string(kind))
	}
	for limit, n := range c.Limited {
		counter(limitedTotal, n, string(limit))
	}
	gauge(openNow, c.Open)
	counter(bytesTotal, c.Sent, "sent")
	counter(bytesTotal, c.Received, "received")
	counter(droppedTotal, c.EventsDropped)
	counter(noticesTotal, c.Hook.Delivered, "delivered")
	counter(noticesTotal, c.Hook.Failed, "failed")
	counter(noticesTotal, c.Hook.Dropped, "dropped")
}

var _ prometheus.Collector = counted{}

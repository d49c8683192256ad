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

// metrics are what /metrics returns. Each label has a small, fixed set of values. Clients and
// sandboxes choose none of them, so they can neither exhaust the collector's memory nor inject
// lines.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec   // by route and status
	took     *prometheus.HistogramVec // by route
	refused  *prometheus.CounterVec   // by reason; denied
	calls    *prometheus.CounterVec   // of AgentRun, by status
	callTook prometheus.Histogram
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		requests: prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "sandboxd_http_requests_total",
				Help: "Authenticated HTTP requests that were answered."},
			[]string{"route", "status"}),
		took: prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Name: "sandboxd_http_request_seconds",
				Help:    "Duration of HTTP requests; of streams until their end.",
				Buckets: []float64{.001, .01, .1, 1, 10, 100}}, []string{"route"}),
		refused: prometheus.NewCounterVec(
			prometheus.CounterOpts{Name: "sandboxd_http_refused_total",
				Help: "HTTP requests that were denied."}, []string{"reason"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sandboxd_run_calls_total",
			Help: "Calls of POST /v1/run/ that were answered."}, []string{"status"}),
		callTook: prometheus.NewHistogram(
			prometheus.HistogramOpts{Name: "sandboxd_run_call_seconds",
				Help:    "Duration of calls of POST /v1/run/, including queue time.",
				Buckets: []float64{.01, .03, .1, .3, 1, 3, 10, 30, 100}}),
	}
	for _, reason := range refusals {
		m.refused.WithLabelValues(reason)
	}
	for _, status := range []agentrun.Status{agentrun.OK, agentrun.Failed, agentrun.TimedOut,
		agentrun.OOMKilled, agentrun.Refused} {
		m.calls.WithLabelValues(string(status))
	}
	m.registry.MustRegister(m.requests, m.took, m.refused, m.calls, m.callTook,
		collectors.NewGoCollector(), collectors.NewProcessCollector(
			collectors.ProcessCollectorOpts{}))
	return m
}

// refusals maps the status of a denied request to the label of its reason.
var refusals = map[int]string{http.StatusUnauthorized: "token", http.StatusForbidden: "origin",
	http.StatusMisdirectedRequest: "host", http.StatusTooManyRequests: "rate", 0: "other"}

// refuse counts a denied request.
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

// answered counts an answered request. route is the pattern that matched, never the path of the
// client.
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

// call counts a call of AgentRun.
func (m *metrics) call(status agentrun.Status, took time.Duration) {
	m.calls.WithLabelValues(string(status)).Inc()
	m.callTook.Observe(took.Seconds())
}

// serveMetrics returns the metrics, to the admin only.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) {
	counts, err := s.hub.Counts(rest.Principal(r.Context()))
	if err != nil {
		rest.Fail(w, r, s.hub, err)
		return
	}
	now := prometheus.NewRegistry()
	now.MustRegister(counted(counts))
	promhttp.HandlerFor(prometheus.Gatherers{s.metrics.registry, now},
		promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// counted is the hub's counters, as a prometheus.Collector.
type counted lifecycle.Counts

func metric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sandboxd_"+name, help, labels, nil)
}

var (
	sandboxesNow = metric("sandboxes",
		"Sandboxes of all owners, by state; warm ones are pooled.", "state")
	sessionsNow     = metric("sessions", "Live sessions.")
	partlyNow       = metric("sessions_recorded_partly", "Sessions with an incomplete record.")
	needsNow        = metric("sessions_needing", "Sessions that need a person, by reason.", "needs")
	carriedNow      = metric("networks_carried", "Sandboxes whose network the daemon provides.")
	bootsTotal      = metric("boots_total", "Boots of sandboxes, by result.", "result")
	claimsTotal     = metric("claims_total", "Claims of pooled sandboxes, by result.", "result")
	connectionTotal = metric("connections_total", "Connections of sandboxes, by outcome.", "what")
	limitedTotal    = metric("connections_limited_total",
		"Connections of sandboxes that exceeded a limit, by limit.", "limit")
	openNow      = metric("connections_open", "Open connections of sandboxes to the outside.")
	bytesTotal   = metric("connection_bytes_total", "Bytes of closed connections.", "direction")
	droppedTotal = metric("events_dropped_total",
		"Events of sandboxes dropped because the store was too slow.")
	noticesTotal = metric("hook_notices_total", "Hook notices of attention states, by result.",
		"result")
)

// Describe implements prometheus.Collector. It sends nothing, which makes the collector unchecked.
func (c counted) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
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

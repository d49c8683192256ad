package gateway

import (
	"strconv"
	"time"
)

// Ago returns the time since t, formatted by Span; empty if t is unknown.
func Ago(t time.Time) string {
	if t.IsZero() || t.UnixMilli() == 0 {
		return ""
	}
	return Span(time.Since(t))
}

// Span formats d in one unit, rounded down: 30s, 12m, 3h, 2d.
func Span(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return strconv.Itoa(int(d.Seconds())) + "s"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + "m"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + "h"
	}
	return strconv.Itoa(int(d.Hours()/24)) + "d"
}

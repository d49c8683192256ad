package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Changes receives a list of objects and what happens to them. Its functions are called one at a
// time, and block the reception of further changes.
type Changes[T any] struct {
	// Replace receives all objects. It is called first, and again when changes may have been
	// missed.
	Replace func(all []T)
	// Put receives an object that is new or has changed, Delete the last state of one that is gone.
	Put, Delete func(T)
	// Lost receives the error that ended a list or a watch, which will be repeated.
	Lost func(error)
}

const (
	pageSize   = 500
	watchFor   = 5 * time.Minute // then the server ends a watch in order
	retryFirst = 100 * time.Millisecond
	retryMost  = 10 * time.Second
)

// Follow lists the objects at path that match a query, such as labelSelector or fieldSelector, and
// watches them until ctx ends. It outlives breaks of the connection and expired resource versions.
// It returns the cause of ctx, or the refusal of the first list, which a repetition does not change.
func Follow[T any](ctx context.Context, c *Client, path string, match url.Values,
	f Changes[T]) error {
	for listed, wait := false, retryFirst; ; {
		all, version, err := List[T](ctx, c, path, match)
		if err == nil {
			f.Replace(all)
		}
		for ; err == nil; version, err = watch(ctx, c, path, match, version, f) {
			listed, wait = true, retryFirst
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, refused := errors.AsType[*Status](err); refused && !listed {
			return err
		}
		if !errors.Is(err, ErrExpired) {
			f.Lost(err)
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, retryMost)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// List lists the objects at path that match a query, a page at a time, and returns the version that a
// watch continues from.
func List[T any](ctx context.Context, c *Client, path string, match url.Values) (all []T,
	version string, err error) {
	q := url.Values{"limit": {strconv.Itoa(pageSize)}}
	maps.Copy(q, match)
	for {
		var page struct {
			Metadata struct{ ResourceVersion, Continue string }
			Items    []T
		}
		if err := c.Do(ctx, Request{Path: path, Query: q}, &page); err != nil {
			return nil, "", err
		}
		all = append(all, page.Items...)
		if page.Metadata.Continue == "" {
			return all, page.Metadata.ResourceVersion, nil
		}
		q.Set("continue", page.Metadata.Continue)
	}
}

// watch receives changes since a version until the server ends the watch, and returns the version
// to continue from.
func watch[T any](ctx context.Context, c *Client, path string, match url.Values, version string,
	f Changes[T]) (string, error) {
	// The server ends it in order; a connection that broke without a sign ends it a little later.
	ctx, cancel := context.WithTimeoutCause(ctx, watchFor+30*time.Second,
		errors.New("the watch is silent"))
	defer cancel()
	q := url.Values{"watch": {"1"}, "resourceVersion": {version}, "allowWatchBookmarks": {"true"},
		"timeoutSeconds": {strconv.Itoa(int(watchFor / time.Second))}}
	maps.Copy(q, match)
	res, err := c.open(ctx, Request{Path: path, Query: q})
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	for d := json.NewDecoder(res.Body); ; {
		var e struct {
			Type   string
			Object json.RawMessage
		}
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return version, nil
		} else if err != nil {
			return "", fmt.Errorf("watch: %w", err)
		}
		if e.Type == "ERROR" {
			var s Status
			_ = json.Unmarshal(e.Object, &s) // without fields it is an error, too
			if s.Code == http.StatusGone {
				s.Reason = ErrExpired.Reason
			}
			s.Message = Printable(s.Message)
			return "", &s
		}
		var meta struct {
			Metadata struct{ ResourceVersion string }
		}
		var object T
		if err := errors.Join(json.Unmarshal(e.Object, &meta),
			json.Unmarshal(e.Object, &object)); err != nil {
			return "", fmt.Errorf("watch: %w", err)
		}
		version = meta.Metadata.ResourceVersion
		switch e.Type {
		case "ADDED", "MODIFIED":
			f.Put(object)
		case "DELETED":
			f.Delete(object)
		} // BOOKMARK has only the version
	}
}

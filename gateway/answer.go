package gateway

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/sandboxd/sandboxd/gateway/attach"
	"github.com/sandboxd/sandboxd/gateway/attention"
	"github.com/sandboxd/sandboxd/sandbox/wire"
)

const (
	maxAnswer  = 1024             // bytes
	answerTime = 10 * time.Second // for one answer
	answerLook = time.Second      // of it, to wait for what follows
)

// Answer types one line of text, and Enter, to the program that asks read, a need as Attention
// reported it: its Sandbox, Session, Since and LastLine count. It takes the keyboard from a program
// for that, never from a person, and gives it back. If the program no longer asks, or asks
// something else, nothing is typed and the error has code not_waiting.
func (s *Sessions) Answer(ctx context.Context, p Principal, read attention.Need,
	text string) error {
	t := read.Target()
	switch {
	case len(text) > maxAnswer:
		return wire.Errorf(wire.CodeUsage, "an answer has at most %d bytes", maxAnswer)
	case !utf8.ValidString(text), strings.ContainsFunc(text, unicode.IsControl):
		return &wire.Error{Code: wire.CodeUsage, Message: "an answer is one line of text",
			Hint: "open the session to press other keys"}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	if err := s.asks(ctx, p, read); err != nil {
		return err
	}
	at, err := s.Join(ctx, p, t, attach.JoinOptions{})
	if err != nil {
		return err
	}
	defer at.Close()
	if by := at.Live().Keyboard(); strings.HasPrefix(by, string(wire.Person)+":") {
		return &wire.Error{Code: wire.CodeKeyboardHeld, Message: by + " has the keyboard",
			Hint: "open the session to ask for it, or to watch"}
	}
	if err := at.Take(ctx); err != nil {
		return err
	}
	// Also when the caller has left; if it fails, the end of the attachment does the same.
	defer func() { _ = at.Give(context.WithoutCancel(ctx)) }()
	if err := s.asks(ctx, p, read); err != nil {
		return err
	}
	got, err := at.Request(ctx, wire.Request{Verb: wire.VerbType, Text: text, Answer: true,
		TimeoutMS: answerLook.Milliseconds()})
	if err != nil {
		return err
	}
	if got.Result != nil && got.Result.Ended == wire.Refused && got.Result.Error != nil {
		return got.Result.Error
	}
	return nil
}

// asks returns an error if the session of read does not ask that. Since alone does not tell: one
// question may follow another at once.
func (s *Sessions) asks(ctx context.Context, p Principal, read attention.Need) error {
	all, err := s.Attention(ctx, p, read.Sandbox)
	if err != nil {
		return err
	}
	for _, n := range all {
		if n.Session == read.Session && n.Needs == attention.Answer && n.Since.Equal(read.Since) &&
			n.LastLine == read.LastLine {
			return nil
		}
	}
	return &wire.Error{Code: wire.CodeNotWaiting,
		Message: "the question has changed or was answered; nothing was typed",
		Hint:    "open the session to see what it does"}
}

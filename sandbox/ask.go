package sandbox

import "context"

// Ask asks the person behind a call for a secret, and returns what they typed. It fails if nobody
// answers before ctx ends.
type Ask func(ctx context.Context, question string) (string, error)

type askKey struct{}

// WithAsk lets a backend ask the person behind a call, for the duration of that call. It is in the
// context and not in a Spec because answers must not be stored.
func WithAsk(ctx context.Context, ask Ask) context.Context {
	return context.WithValue(ctx, askKey{}, ask)
}

// AskOf returns how to ask the person behind a call; nil if there is nobody.
func AskOf(ctx context.Context) Ask {
	ask, _ := ctx.Value(askKey{}).(Ask)
	return ask
}

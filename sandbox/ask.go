package sandbox

import "context"

// Ask asks the person who is behind a call for a secret, and returns what they typed. It fails where nobody answers before ctx
// ends.
type Ask func(ctx context.Context, question string) (string, error)

type askKey struct{}

// WithAsk lets a backend ask the person behind a call, for as long as that lasts: who asks is a matter of the call, and what they
// say is not to be in a spec.
func WithAsk(ctx context.Context, ask Ask) context.Context {
	return context.WithValue(ctx, askKey{}, ask)
}

// AskOf returns who may be asked; nil when there is nobody.
func AskOf(ctx context.Context) Ask {
	ask, _ := ctx.Value(askKey{}).(Ask)
	return ask
}

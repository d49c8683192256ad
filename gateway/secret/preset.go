package secret

import (
	"net/http"
	"strings"
)

// Presets are the names of Preset.
var Presets = []string{"anthropic", "claude", "openai", "google", "github"}

// Preset returns the bindings of a well-known API. rules narrow it; methods apply to rules without
// methods. For github, a rule with the path /OWNER/REPOSITORY is that repository, to fetch and read
// it.
func Preset(name string, rules []Rule, methods []string) ([]Binding, bool) {
	with := withMethods(rules, methods)
	switch name {
	case "anthropic":
		return []Binding{{Host: "api.anthropic.com", Header: "x-api-key: {}", Rules: with}}, true
	case "claude": // the token of a subscription, which claude setup-token prints
		return []Binding{{Host: "api.anthropic.com", Header: "Authorization: Bearer {}",
			Rules: with}}, true
	case "openai":
		return []Binding{{Host: "api.openai.com", Header: "Authorization: Bearer {}", Rules: with}},
			true
	case "google":
		return []Binding{{Host: "generativelanguage.googleapis.com", Header: "x-goog-api-key: {}",
			Rules: with, Params: []string{"key", "access_token", "oauth_token"}}}, true
	case "github":
		return github(rules, methods), true
	}
	return nil, false
}

// withMethods returns rules with methods where they have none, or one rule of the methods alone.
func withMethods(rules []Rule, methods []string) []Rule {
	if len(methods) == 0 {
		return rules
	}
	if len(rules) == 0 {
		return []Rule{{Methods: methods}}
	}
	out := make([]Rule, len(rules))
	for i, r := range rules {
		if out[i] = r; len(r.Methods) == 0 {
			out[i].Methods = methods
		}
	}
	return out
}

// WithMethods returns the rules of a host: paths, each with its own methods or else methods.
func WithMethods(paths []Rule, methods []string) []Rule { return withMethods(paths, methods) }

// github returns the bindings of GitHub's API, to read, and of git over HTTPS, to fetch. methods
// are more ones of the API. A push is a POST to git-receive-pack, which needs a rule of its own.
func github(rules []Rule, methods []string) []Binding {
	api := Binding{Host: "api.github.com", Header: "Authorization: Bearer {}"}
	git := Binding{Host: "github.com", Header: "Authorization: Basic {basic:x-access-token}"}
	read := []string{http.MethodGet}
	apiMethods := append([]string{http.MethodGet}, methods...)
	add := func(repository string) {
		api.Rules = append(api.Rules, Rule{apiMethods, "/repos" + repository})
		for _, path := range []string{repository, repository + ".git"} {
			git.Rules = append(git.Rules, Rule{read, path},
				Rule{[]string{http.MethodPost}, path + "/git-upload-pack"})
		}
	}
	for _, r := range rules {
		path := strings.TrimSuffix(r.Path, "/")
		if strings.Count(path, "/") == 2 && len(r.Methods) == 0 {
			add(strings.TrimSuffix(path, ".git"))
			continue
		}
		git.Rules = append(git.Rules, withMethods([]Rule{r}, apiMethods)...)
	}
	switch {
	case len(rules) == 0:
		api.Rules = []Rule{{Methods: apiMethods}}
		git.Rules = []Rule{{Methods: read}, {[]string{http.MethodPost}, "/*/*/git-upload-pack"}}
	case len(api.Rules) == 0: // no rules would allow all
		return []Binding{git}
	}
	return []Binding{api, git}
}

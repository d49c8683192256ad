package cluster

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// write writes a file of a new directory and returns its path.
func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const twoContexts = `
apiVersion: v1
kind: Config
current-context: one
clusters:
- {name: c1, cluster: {server: "https://one:6443", certificate-authority: ca.crt, tls-server-name: kube, proxy-url: "socks5://p:1"}}
- {name: c2, cluster: {server: "https://two", certificate-authority-data: "` + "Q0E=" + `"}}
users:
- {name: u1, user: {client-certificate: sub/u.crt, client-key-data: "S0VZ", as: carol}}
- {name: u2, user: {token: first, tokenFile: token}}
- name: u3
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1
      command: ./login
      args: [--cluster, a]
      env: [{name: PROFILE, value: x}]
      installHint: install it
      interactiveMode: IfAvailable
contexts:
- {name: one, context: {cluster: c1, user: u1, namespace: boxes}}
- {name: two, context: {cluster: c2, user: u2}}
- {name: three, context: {cluster: c2, user: u3}}
- {name: nobody, context: {cluster: c2}}
`

func TestKubeconfig(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "ca.crt", "FILE")
	write(t, dir, "sub/u.crt", "CERT")
	file := write(t, dir, "config", twoContexts)
	for context, want := range map[string]Config{
		"": {Server: "https://one:6443", Namespace: "boxes", CA: []byte("FILE"), ServerName: "kube",
			Proxy: "socks5://p:1", Certificate: []byte("CERT"), Key: []byte("KEY"), As: "carol"},
		"two": {Server: "https://two", Namespace: "default", CA: []byte("CA"),
			TokenFile: filepath.Join(dir, "token")},
		"three": {Server: "https://two", Namespace: "default", CA: []byte("CA"),
			Exec: &Exec{Version: "client.authentication.k8s.io/v1", Command: "./login",
				Args: []string{"--cluster", "a"}, Env: []string{"PROFILE=x"}, Dir: dir,
				Hint: "install it"}},
		"nobody": {Server: "https://two", Namespace: "default", CA: []byte("CA")},
	} {
		got, err := Kubeconfig([]string{file}, context)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("context %q: %v (-want +got):\n%s", context, err, diff)
		}
	}
}

// The first file that has an entry counts, and missing files of a list do not matter.
func TestKubeconfigs(t *testing.T) {
	dir := t.TempDir()
	files := []string{filepath.Join(dir, "none"),
		write(t, dir, "a", "current-context: x\nclusters: [{name: c, cluster: {server: https://a}}]"),
		write(t, dir, "b", "current-context: y\n"+
			"clusters: [{name: c, cluster: {server: https://b}}]\n"+
			"contexts: [{name: x, context: {cluster: c}}]")}
	got, err := Kubeconfig(files, "")
	if want := (Config{Server: "https://a", Namespace: "default"}); err != nil ||
		!cmp.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// What cannot be honored is refused by name.
func TestKubeconfigRefused(t *testing.T) {
	const contexts = "\ncurrent-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	const clusters = contexts + "clusters: [{name: c, cluster: {server: https://a}}]\n"
	for _, tt := range []struct{ name, text, want string }{
		{"missing", "", "no such file"},
		{"no YAML", "\t", "cannot start any token"},
		{"no context", "kind: Config", "no current context"},
		{"unknown context", "current-context: z", `no context "z"`},
		{"unknown cluster", contexts, `no cluster "c"`},
		{"unknown user", clusters, `no user "u"`},
		{"insecure", contexts + "clusters: [{name: c, cluster: {server: https://a, " +
			"insecure-skip-tls-verify: true}}]", "insecure-skip-tls-verify is not supported"},
		{"no authority", contexts + "clusters: [{name: c, cluster: {server: https://a, " +
			"certificate-authority: none}}]", "certificate-authority: open"},
		{"data", contexts + "clusters: [{name: c, cluster: {server: https://a, " +
			"certificate-authority-data: '%'}}]", "illegal base64"},
		{"password", clusters + "users: [{name: u, user: {username: a, password: secret}}]",
			"username is not supported"},
		{"provider", clusters + "users: [{name: u, user: {auth-provider: {name: gcp}}}]",
			"auth-provider gcp is not supported"},
		{"groups", clusters + "users: [{name: u, user: {as: a, as-groups: [b]}}]",
			"as-groups and as-user-extra are not supported"},
		{"exec", clusters + "users: [{name: u, user: {exec: {command: x}}}]", "apiVersion are required"},
		{"terminal", clusters + "users: [{name: u, user: {exec: {command: x, apiVersion: v1, " +
			"interactiveMode: Always}}}]", "needs a terminal"},
		{"cluster info", clusters + "users: [{name: u, user: {exec: {command: x, apiVersion: v1, " +
			"provideClusterInfo: true}}}]", "provideClusterInfo is not supported"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "none")
			if tt.text != "" {
				file = write(t, t.TempDir(), "config", tt.text)
			}
			_, err := Kubeconfig([]string{file}, "")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%v repeats a password", err)
			}
		})
	}
}

func TestDefaultKubeconfig(t *testing.T) {
	t.Setenv("KUBECONFIG", "/a:/b")
	if got := DefaultKubeconfig(); !cmp.Equal(got, []string{"/a", "/b"}) {
		t.Errorf("%q", got)
	}
	t.Setenv("KUBECONFIG", "")
	t.Setenv("HOME", "/home/me")
	if got := DefaultKubeconfig(); !cmp.Equal(got, []string{"/home/me/.kube/config"}) {
		t.Errorf("%q", got)
	}
}

func TestInCluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := InCluster(); err == nil || !strings.Contains(err.Error(), "not in a pod") {
		t.Errorf("outside: %v", err)
	}
	dir := t.TempDir()
	write(t, dir, "ca.crt", "CA")
	write(t, dir, "namespace", "boxes\n")
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "443")
	got, err := inCluster(dir)
	if want := (Config{Server: "https://[fd00::1]:443", Namespace: "boxes", CA: []byte("CA"),
		TokenFile: filepath.Join(dir, "token")}); err != nil || !cmp.Equal(got, want) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

func FuzzKubeconfig(f *testing.F) {
	f.Add(twoContexts)
	f.Add("users: [{name: u, user: {exec: {}}}]\ncontexts: [{name: x, context: {user: u}}]")
	f.Add("clusters: [{cluster: {certificate-authority-data: " +
		base64.StdEncoding.EncodeToString([]byte("x")) + "}}]")
	f.Fuzz(func(t *testing.T, text string) {
		file := filepath.Join(t.TempDir(), "config")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if c, err := Kubeconfig([]string{file}, ""); err == nil {
			_, _ = New(c) // no panic
		}
	})
}

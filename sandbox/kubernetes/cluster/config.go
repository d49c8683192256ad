package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Config is how to reach an API server, and how to log in to it.
type Config struct {
	Server     string // https URL
	Namespace  string // of objects whose path has none
	CA         []byte // authorities of the server's certificate, PEM; empty means those of the machine
	ServerName string // in the server's certificate; empty means the host of Server
	Proxy      string // URL of an HTTP or SOCKS5 proxy; empty means that of the environment

	// Certificate and Key log in by TLS, PEM; empty without.
	Certificate, Key []byte
	// Token is a bearer token. TokenFile has one that may change: it is read again.
	Token, TokenFile string
	// Exec is a program that prints credentials; nil without.
	Exec *Exec
	// As is the user to act for; empty means the one that logs in.
	As string
}

// Exec is a credential plugin (client.authentication.k8s.io).
type Exec struct {
	Version string // apiVersion
	Command string
	Args    []string
	Env     []string // K=V, added to the environment
	Dir     string   // of the kubeconfig file, to which a path in Command is relative
	Hint    string   // what to do if Command is not installed
}

// serviceAccount is where a pod finds its credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// errOutside is the error of InCluster outside a pod.
var errOutside = errors.New("not in a pod of a cluster: KUBERNETES_SERVICE_HOST is not set")

// InCluster returns the configuration of a program that runs in a pod.
func InCluster() (Config, error) { return inCluster(serviceAccount) }

func inCluster(dir string) (Config, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Config{}, errOutside
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return Config{}, fmt.Errorf("service account: %w", err)
	}
	namespace, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil {
		return Config{}, fmt.Errorf("service account: %w", err)
	}
	return Config{Server: "https://" + host + ":" + port, CA: ca,
		Namespace: strings.TrimSpace(string(namespace)),
		TokenFile: filepath.Join(dir, "token")}, nil
}

// kubeconfig is the part of such a file that is used. What is recognized and refused is there, too.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Clusters []struct {
		Name    string
		Cluster struct {
			Server     string
			CA         string `yaml:"certificate-authority"`
			CAData     string `yaml:"certificate-authority-data"`
			ServerName string `yaml:"tls-server-name"`
			Insecure   bool   `yaml:"insecure-skip-tls-verify"`
			Proxy      string `yaml:"proxy-url"`
		}
	}
	Users []struct {
		Name string
		User user
	}
	Contexts []struct {
		Name    string
		Context struct{ Cluster, User, Namespace string }
	}

	dir string
}

type user struct {
	Certificate     string `yaml:"client-certificate"`
	CertificateData string `yaml:"client-certificate-data"`
	Key             string `yaml:"client-key"`
	KeyData         string `yaml:"client-key-data"`
	Token           string
	TokenFile       string `yaml:"tokenFile"`
	As              string
	AsUID           string         `yaml:"as-uid"`
	AsGroups        []string       `yaml:"as-groups"`
	AsExtra         map[string]any `yaml:"as-user-extra"`
	Username        string
	Provider        *struct{ Name string } `yaml:"auth-provider"`
	Exec            *struct {
		APIVersion      string `yaml:"apiVersion"`
		Command         string
		Args            []string
		Env             []struct{ Name, Value string }
		InstallHint     string `yaml:"installHint"`
		InteractiveMode string `yaml:"interactiveMode"`
		ClusterInfo     bool   `yaml:"provideClusterInfo"`
	}
}

// DefaultKubeconfig returns the files of KUBECONFIG, else ~/.kube/config.
func DefaultKubeconfig() []string {
	if list := filepath.SplitList(os.Getenv("KUBECONFIG")); len(list) > 0 {
		return list
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil
	}
	return []string{filepath.Join(home, ".kube", "config")}
}

// Kubeconfig reads the configuration of a context from files, of which the first that has an entry
// counts and at least one must exist. An empty context means the current one. What it cannot honor
// is an error that names it.
func Kubeconfig(files []string, context string) (Config, error) {
	var all []kubeconfig
	for _, file := range files {
		text, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) && len(files) > 1 {
			continue
		}
		if err != nil {
			return Config{}, fmt.Errorf("kubeconfig: %w", err)
		}
		k := kubeconfig{dir: filepath.Dir(file)}
		if err := yaml.Unmarshal(text, &k); err != nil {
			return Config{}, fmt.Errorf("kubeconfig %s: %w", file, err)
		}
		all = append(all, k)
		context = cmp.Or(context, k.Current)
	}
	where := "kubeconfig " + strings.Join(files, string(filepath.ListSeparator))
	if context == "" {
		return Config{}, fmt.Errorf("%s has no current context", where)
	}
	c, err := lookUp(all, context)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", where, err)
	}
	return c, nil
}

// lookUp returns the configuration of a context.
func lookUp(all []kubeconfig, context string) (Config, error) {
	for _, k := range all {
		for _, x := range k.Contexts {
			if x.Name != context {
				continue
			}
			c := Config{Namespace: cmp.Or(x.Context.Namespace, "default")}
			if err := c.setCluster(all, x.Context.Cluster); err != nil {
				return c, err
			}
			return c, c.setUser(all, x.Context.User)
		}
	}
	return Config{}, fmt.Errorf("no context %q", context)
}

func (c *Config) setCluster(all []kubeconfig, name string) error {
	for _, k := range all {
		for _, x := range k.Clusters {
			if x.Name != name {
				continue
			}
			if x.Cluster.Insecure {
				return fmt.Errorf("cluster %q: insecure-skip-tls-verify is not supported; set "+
					"certificate-authority", name)
			}
			c.Server, c.ServerName, c.Proxy = x.Cluster.Server, x.Cluster.ServerName,
				x.Cluster.Proxy
			var err error
			if c.CA, err = k.read(x.Cluster.CA, x.Cluster.CAData); err != nil {
				return fmt.Errorf("cluster %q: certificate-authority: %w", name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("no cluster %q", name)
}

func (c *Config) setUser(all []kubeconfig, name string) error {
	if name == "" {
		return nil
	}
	for _, k := range all {
		for _, x := range k.Users {
			if x.Name != name {
				continue
			}
			if err := c.login(k, x.User); err != nil {
				return fmt.Errorf("user %q: %w", name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("no user %q", name)
}

// login takes over the credentials of a user.
func (c *Config) login(k kubeconfig, u user) (err error) {
	switch {
	case u.Username != "":
		return errors.New("username is not supported: no current server accepts a password")
	case u.Provider != nil:
		return fmt.Errorf("auth-provider %s is not supported; use its exec plugin",
			Printable(u.Provider.Name))
	case u.AsUID != "" || len(u.AsGroups) > 0 || len(u.AsExtra) > 0:
		return errors.New("as-uid, as-groups and as-user-extra are not supported; use a user with " +
			"the rights itself")
	}
	c.As, c.Token = u.As, u.Token
	if u.TokenFile != "" {
		c.TokenFile, c.Token = k.path(u.TokenFile), ""
	}
	if c.Certificate, err = k.read(u.Certificate, u.CertificateData); err != nil {
		return fmt.Errorf("client-certificate: %w", err)
	}
	if c.Key, err = k.read(u.Key, u.KeyData); err != nil {
		return fmt.Errorf("client-key: %w", err)
	}
	if u.Exec == nil {
		return nil
	}
	if u.Exec.Command == "" || u.Exec.APIVersion == "" {
		return errors.New("exec: command and apiVersion are required")
	}
	if u.Exec.InteractiveMode == "Always" {
		return fmt.Errorf("exec: %s needs a terminal (interactiveMode Always), which a daemon "+
			"does not have", Printable(u.Exec.Command))
	}
	if u.Exec.ClusterInfo {
		return fmt.Errorf("exec: %s: provideClusterInfo is not supported",
			Printable(u.Exec.Command))
	}
	c.Exec = &Exec{Version: u.Exec.APIVersion, Command: u.Exec.Command, Args: u.Exec.Args,
		Dir: k.dir, Hint: Printable(u.Exec.InstallHint)}
	for _, v := range u.Exec.Env {
		c.Exec.Env = append(c.Exec.Env, v.Name+"="+v.Value)
	}
	return nil
}

// path returns a path of a kubeconfig file, which may be relative to the file.
func (k kubeconfig) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(k.dir, p)
}

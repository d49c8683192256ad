// Package config gives the configuration of sandboxd as one typed struct: what the defaults,
// files, environment variables and flags say together, checked, with where each value comes from.
//
// It is for the daemon and the command line alone; other packages take options of their own and
// know neither files nor variables. It does not start anything and does not ask the engine.
package config

import (
	"github.com/sandboxd/sandboxd/sandbox"
)

// Config is every setting. A field's tags are its key (koanf), its default as the environment
// would have it, and what else the reference says of it; its comment is its meaning, which
// config show and docs/reference/configuration.md print. One sentence or two, in plain English.
//
//	oneof    the words that it may be
//	computed how its default is found, where it depends on the machine
//	flag     the flag that sets it
//	env      the only prefix of its variable, where another product uses that with SANDBOXD_
//	old      the key's former name
//	secret   never printed
type Config struct {
	// Directory of everything that the daemon keeps.
	State Path `koanf:"state" computed:"the state directory of the user" flag:"--state"`

	// Address of the SSH server. Port 0 takes any free port.
	SSH string `koanf:"ssh" default:"127.0.0.1:2222" flag:"serve --ssh"`

	// Address of the HTTP server, or none for no HTTP server. If the port of the default is taken,
	// the next free one is used.
	HTTP string `koanf:"http" default:"127.0.0.1:8022" flag:"serve --http"`

	// File with the keys that may log in, besides that of the command line. The daemon copies it to
	// authorized_keys in the state directory when it starts. Empty: you edit that file.
	AuthorizedKeys Path `koanf:"authorized_keys"`

	// Host names of this daemon for HTTP clients, besides localhost and addresses: those of a
	// reverse proxy.
	HTTPHosts Words `koanf:"http_hosts"`

	// What makes sandboxes: docker, an engine; oci, the runtime runc or crun without an engine;
	// kubernetes, a cluster. auto: docker where an engine is installed or docker_host is set, and
	// oci elsewhere.
	Backend string `koanf:"backend" default:"auto" oneof:"auto docker oci kubernetes"`

	// Default network of sandboxes: filtered, allowlist, none or bridge. =tun or =proxy after the
	// first two forces a TUN device or a proxy.
	Network Network `koanf:"network" default:"filtered"`

	// What all sandboxes with network filtered or allowlist may connect to: names, *.names,
	// addresses, ranges, or * for all that filtered reaches, each with :port or without.
	Allow Words `koanf:"allow"`

	// Ranges that these sandboxes reach only if they are allowed. Empty: private, shared, benchmark
	// and tunnel ranges. Loopback, link-local, metadata, multicast and reserved addresses are
	// always blocked.
	Closed Words `koanf:"closed"`

	// Maximum connections of all these sandboxes together. 0: half of the files that the daemon
	// may open, at most 16384.
	Connections int `koanf:"connections" default:"0"`

	// Principals besides the admin who may use network bridge. All may if network is bridge.
	Bridge Words `koanf:"bridge"`

	// Default image of sandboxes.
	Image string `koanf:"image" default:"sandboxd/base:latest"`

	// Default runtime of sandboxes, by the engine's name for it, such as runc or runsc. Empty: the
	// engine's default.
	Isolation string `koanf:"isolation"`

	// Options of docker run that principals besides the admin may use: NAME, or NAME=VALUE for
	// only that value.
	DockerOptions Options `koanf:"docker_options"`

	// Directories that the admin may mount, with everything below them. An empty list allows none.
	MountRoots Paths `koanf:"mount_roots" computed:"the user's home directory"`

	// The Docker engine: unix:///PATH, ssh://HOST, or tcp://HOST:PORT. Empty: DOCKER_HOST, or
	// /var/run/docker.sock.
	DockerHost string `koanf:"docker_host"`

	// File with certificate authorities that sandboxes trust, and that verify the servers of
	// secrets. Empty: this machine's.
	CABundle Path `koanf:"ca_bundle"`

	// Directory of the guest binaries. Empty: beside sandboxd, or sandboxd itself.
	GuestDir Path `koanf:"guest_dir"`

	// Maximum sandboxes of one owner.
	MaxSandboxes int `koanf:"max_sandboxes" default:"64"`

	// Stop a sandbox that was unused for this long; its files stay. 0: never.
	TTL Duration `koanf:"ttl" default:"0"`

	// Remove a sandbox, with its files, that was stopped for this long. 0: never.
	DeleteAfter Duration `koanf:"delete_after" default:"0"`

	// Prefix key of commands in a session: ctrl- and a letter or one of \ ] ^ _, or none.
	PrefixKey string `koanf:"prefix_key" default:"ctrl-]" old:"chord"`

	// How the terminal of a person who is in a session by ssh says that a session has begun to ask
	// for an answer: desktop is a bell and a notification of the desktop (OSC 9).
	Alert string `koanf:"alert" default:"none" oneof:"none bell desktop"`

	// Lowest level of messages in the log.
	LogLevel string `koanf:"log_level" default:"info" oneof:"debug info warn error" env:"SBX_"`

	// Default limits. Unless set here, memory, cpus and nofile are lowered to what the engine has.
	Limits Limits `koanf:"limits"`

	// Sandboxes that are pods of a Kubernetes cluster, with backend kubernetes.
	Kubernetes Kubernetes `koanf:"kubernetes"`

	// Sandboxes without an engine, with backend oci.
	OCI OCI `koanf:"oci"`

	// Limits of all sandboxes of one owner together.
	Quota Quota `koanf:"quota"`

	// Limits of the sandboxes of all owners together.
	Total Total `koanf:"total"`

	// Disk of the engine.
	Disk Disk `koanf:"disk"`

	// Sandboxes that are booted in advance.
	Pool Pool `koanf:"pool"`

	// Records of sessions.
	Record Record `koanf:"record"`

	// Log file of a daemon in the background: daemon.log in the state directory.
	Log Log `koanf:"log"`

	// What to call when a session's attention state changes.
	Hook Hook `koanf:"hook"`

	// Stateful Python: sandboxd python, the MCP tool python and E2B's run_code.
	Python Python `koanf:"python"`

	// Language model of sandboxd task.
	OpenAI OpenAI `koanf:"openai"`

	// E2B-compatible API.
	E2B E2B `koanf:"e2b"`

	// AgentRun-compatible API: POST /v1/run/.
	AgentRun AgentRun `koanf:"agentrun"`
}

// Limits are those of one sandbox.
type Limits struct {
	// Maximum memory, including swap and /dev/shm.
	Memory Size `koanf:"memory" default:"2g"`

	// Maximum processor cores.
	CPUs float64 `koanf:"cpus" default:"2"`

	// Maximum processes and threads.
	PIDs int64 `koanf:"pids" default:"512"`

	// Maximum size of /dev/shm.
	Shm Size `koanf:"shm" default:"64m"`

	// Maximum open files of a process.
	NoFile int64 `koanf:"nofile" default:"65536"`

	// Maximum disk space of its files, besides those of its image.
	Disk Size `koanf:"disk" default:"10g"`

	// Maximum sessions.
	Sessions int64 `koanf:"sessions" default:"32"`

	// Maximum connections, with network filtered or allowlist.
	Connections int64 `koanf:"connections" default:"1024"`
}

// BackendAuto is the Backend that is chosen by what this machine has.
const BackendAuto = "auto"

// OCI is about backend oci.
type OCI struct {
	// Directory of images. Several daemons of one user may share it; other users may not enter it.
	// The default of an ordinary user is $XDG_DATA_HOME/sandboxd/images.
	Images Path `koanf:"images" default:"/var/lib/sandboxd/images"`
}

// Kubernetes is about the cluster of backend kubernetes.
type Kubernetes struct {
	// Kubeconfig file. Empty: the service account of the pod that the daemon runs in; outside a
	// pod, KUBECONFIG or ~/.kube/config.
	Kubeconfig Path `koanf:"kubeconfig"`

	// Context of the kubeconfig file. Empty: its current one.
	Context string `koanf:"context"`

	// Namespace of the pods. Empty: that of the context, or of the daemon's pod.
	Namespace string `koanf:"namespace"`

	// Image with the guest program at /guest. Required.
	GuestImage string `koanf:"guest_image"`

	// How a pod gets the guest program. copy: an init container copies it. volume: the image is a
	// volume, which is faster; nodes since Kubernetes 1.35 have it.
	Guest string `koanf:"guest" default:"copy" oneof:"copy volume"`

	// Secrets of the namespace for the registries of images.
	PullSecrets Words `koanf:"pull_secrets"`

	// How the daemon connects to a pod: by port-forward, or by a program that it runs there, for
	// runtimes without port-forward. exec is slower.
	Connection string `koanf:"connection" default:"port-forward" oneof:"port-forward exec"`

	// File with a pod in YAML: what all pods of sandboxes have besides what the daemon sets. It may
	// have labels, annotations, nodeSelector, tolerations, affinity, topologySpreadConstraints,
	// priorityClassName, schedulerName, hostUsers, and requests of the container sandbox.
	PodTemplate Path `koanf:"pod_template"`

	// Storage class of the volumes of sandboxes. Empty: the cluster's default.
	StorageClass string `koanf:"storage_class"`
}

// Quota bounds one owner.
type Quota struct {
	// Maximum sessions. 0: no limit.
	Sessions int `koanf:"sessions" default:"0"`

	// Maximum connections, with network filtered or allowlist. 0: half of connections.
	Connections int `koanf:"connections" default:"0"`

	// Maximum sum of the memory limits of sandboxes that are not stopped. 0: no limit.
	Memory Size `koanf:"memory" default:"0"`

	// Maximum sum of their limits of processor cores. 0: no limit.
	CPUs float64 `koanf:"cpus" default:"0"`

	// Maximum sum of the disk limits of all sandboxes, and of the sizes of snapshots and other
	// images made for the owner. 0: no limit.
	Disk Size `koanf:"disk" default:"0"`
}

// Total bounds all owners together.
type Total struct {
	// Maximum sandboxes. The pool uses what is left.
	Sandboxes int `koanf:"sandboxes" default:"1000"`

	// Maximum sandboxes that are not stopped. 0: as many as the memory, threads and open files of
	// this machine allow, at most 1000; with backend kubernetes, all.
	Running int `koanf:"running" default:"0"`
}

// Disk is about the engine's disk.
type Disk struct {
	// Free space below which nothing is created or started, and the sandbox that writes most is
	// stopped. 0: no minimum.
	MinFree Size `koanf:"min_free" default:"1g"`
}

// Pool says what is pooled.
type Pool struct {
	// Pooled sandboxes of each image, for requests of only a name and the image. 0: no pool.
	Size int `koanf:"size" default:"0"`

	// Images that are pooled. Empty: image.
	Images Words `koanf:"images"`
}

// Record is about what sessions leave on disk.
type Record struct {
	// Maximum size of a session's record; then its oldest part is dropped.
	Quota Size `koanf:"quota" default:"256m"`

	// Maximum size of a sandbox's records; then those of ended sessions are removed, the oldest
	// first.
	Total Size `koanf:"total" default:"2g"`

	// Remove the record of a session this long after its end. 0: keep it while there is room.
	Keep Duration `koanf:"keep" default:"0"`

	// What happens to a session that cannot be recorded. best_effort: it goes on. strict: it ends.
	Mode string `koanf:"mode" default:"best_effort" oneof:"best_effort strict"`
}

// RecordStrict is the mode of recording in which a session that cannot be recorded ends.
const RecordStrict = "strict"

// Log bounds the log file of a daemon in the background.
type Log struct {
	// Size at which the file is rotated, in whole MiB.
	MaxSize Size `koanf:"max_size" default:"10m"`

	// Rotated files that are kept besides the current one. 0: all.
	MaxFiles int `koanf:"max_files" default:"5"`
}

// Hook says who is notified.
type Hook struct {
	// Command that receives the event as JSON on standard input. It is not run through a shell.
	Exec Command `koanf:"exec"`

	// URL that receives the event as a POST.
	URL string `koanf:"url" secret:"true"`

	// What the URL receives: json, the event; or a message to people as the service of this name
	// has it, when a need begins and no person is attached to the session.
	Format string `koanf:"format" default:"json" oneof:"json ntfy slack discord telegram"`

	// Secret that signs each POST as in Standard Webhooks: whsec_ and base64 of 24 to 64 bytes.
	Secret string `koanf:"secret" secret:"true"`
}

// Python says how Python runs.
type Python struct {
	// Image of sandboxes that sandboxd python creates. It needs python3, ipykernel and
	// jupyter_server.
	Image string `koanf:"image" default:"sandboxd/python:latest"`

	// Network of these sandboxes. Empty: network.
	Network Network `koanf:"network" default:"none"`

	// Memory limit of these sandboxes.
	Memory Size `koanf:"memory" default:"1g"`

	// Runtime of these sandboxes. Empty: isolation.
	Isolation string `koanf:"isolation"`

	// Options of docker run for these sandboxes, as of new --docker-option.
	Options Options `koanf:"options"`

	// Interrupt code after this long, unless the call sets another time.
	Timeout Duration `koanf:"timeout" default:"2m"`

	// End a context that was unused for this long, with its variables. 0: never.
	Idle Duration `koanf:"idle" default:"30m"`

	// Working directory of code in the sandbox, created if missing.
	Dir Path `koanf:"dir" default:"/mnt/data"`

	// Protocol by which sandboxd python draws images on a terminal. auto asks the terminal.
	Images string `koanf:"images" default:"auto" oneof:"auto kitty iterm2 sixel none"`

	// Notes for users and models, such as packages and data; shown by describe.
	About string `koanf:"about"`
}

// OpenAI is a server that speaks OpenAI's Chat Completions.
type OpenAI struct {
	// URL of the server. OPENAI_BASE_URL has precedence.
	BaseURL string `koanf:"base_url" default:"https://api.openai.com/v1"`

	// API key. OPENAI_API_KEY has precedence.
	APIKey string `koanf:"api_key" secret:"true"`

	// Name of the model. OPENAI_MODEL has precedence.
	Model string `koanf:"model"`

	// Time limit of an answer. An answer that pauses for a fifth of it fails.
	Timeout Duration `koanf:"timeout" default:"5m"`
}

// E2B is about clients made for E2B.
type E2B struct {
	// Images by template name. By default, base is the default image, and code-interpreter-v1 is
	// sandboxd/python.
	Templates Templates `koanf:"templates"`
}

// AgentRun is about clients made for AgentRun. Its keys are AgentRun's own.
type AgentRun struct {
	// Imported packages that may be installed. * is any package; an empty list, or none, is no
	// package.
	DependenciesWhitelist Packages `koanf:"dependencies_whitelist" default:"*"`

	// Packages that are installed in advance, once for each principal.
	CachedDependencies Words `koanf:"cached_dependencies"`

	// Microseconds of processor time in each 100 ms. 100000 is one processor.
	CPUQuota int64 `koanf:"cpu_quota" default:"50000"`

	// Memory limit of the code.
	MemoryLimit Size `koanf:"memory_limit" default:"100m"`

	// Limit of memory and swap together, on a machine with swap.
	MemswapLimit Size `koanf:"memswap_limit" default:"512m"`

	// Kill code after this long; at most 1h.
	Timeout Duration `koanf:"timeout" default:"20s"`

	// Image for the code. It needs python3 and pip. Empty: image.
	Image string `koanf:"image"`

	// Network of the code. Empty: network.
	Network Network `koanf:"network"`

	// What pip may connect to, as in allow.
	InstallFrom Words `koanf:"install_from" default:"pypi.org:443 files.pythonhosted.org:443"`

	// Pooled sandboxes of each caller, until ten minutes after the last call.
	Warm int `koanf:"warm" default:"4"`

	// Maximum concurrent calls; others wait.
	Parallel int `koanf:"parallel" default:"8"`
}

// SandboxLimits returns the limits as a backend takes them.
func (l Limits) SandboxLimits() sandbox.Limits {
	return sandbox.Limits{
		Memory: int64(l.Memory), CPUs: l.CPUs, PIDs: l.PIDs, Shm: int64(l.Shm), NoFile: l.NoFile,
		Disk: int64(l.Disk), Sessions: l.Sessions, Connections: l.Connections,
	}
}

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
	// Directory for everything the daemon keeps.
	State Path `koanf:"state" computed:"the state directory of the user" flag:"--state"`

	// Address of the SSH server. Port 0 takes any free port.
	SSH string `koanf:"ssh" default:"127.0.0.1:2222" flag:"serve --ssh"`

	// Address of the HTTP server, or none for no HTTP server. While it has its default, the next
	// free port is used if the port is taken.
	HTTP string `koanf:"http" default:"127.0.0.1:8022" flag:"serve --http"`

	// Host names, besides localhost and addresses, that HTTP clients may use for this daemon:
	// those of a reverse proxy.
	HTTPHosts Words `koanf:"http_hosts"`

	// Network of sandboxes that ask for none: filtered, allowlist, none or bridge. filtered=tun
	// and allowlist=tun set no proxy variables in the sandbox.
	Network Network `koanf:"network" default:"filtered"`

	// What every sandbox with network filtered or allowlist may connect to: names, *.names,
	// addresses or ranges, each with :port or without.
	Allow Words `koanf:"allow"`

	// Ranges that such sandboxes cannot reach unless they are allowed. Loopback, link-local,
	// metadata and multicast addresses are always blocked. Empty: private, shared and reserved ranges.
	Closed Words `koanf:"closed"`

	// Most connections of all such sandboxes together. 0: half of the files that the daemon may
	// open, at most 16384.
	Connections int `koanf:"connections" default:"0"`

	// Principals besides the admin who may ask for network bridge. Everybody may if network is bridge.
	Bridge Words `koanf:"bridge"`

	// Image of sandboxes that ask for none.
	Image string `koanf:"image" default:"sandboxd/base:latest"`

	// Runtime that isolates sandboxes from this machine, by the engine's name for it, such as runc
	// or runsc. Empty: the engine's default.
	Isolation string `koanf:"isolation"`

	// Options of docker run that principals besides the admin may ask for: NAME, or NAME=VALUE for
	// that value alone.
	DockerOptions Options `koanf:"docker_options"`

	// Directories that sandboxes of the admin may mount, with everything below them. An empty list
	// allows none.
	MountRoots Paths `koanf:"mount_roots" computed:"the user's home directory"`

	// Socket of the Docker engine, as unix:///path. Empty: DOCKER_HOST, or /var/run/docker.sock.
	DockerHost string `koanf:"docker_host"`

	// File of certificate authorities that sandboxes trust. Empty: this machine's.
	CABundle Path `koanf:"ca_bundle"`

	// Directory of the guest binaries. Empty: beside sandboxd, or sandboxd itself.
	GuestDir Path `koanf:"guest_dir"`

	// Most sandboxes of one owner.
	MaxSandboxes int `koanf:"max_sandboxes" default:"64"`

	// Stop a sandbox after nobody used it for this long; its files stay. 0: never.
	TTL Duration `koanf:"ttl" default:"0"`

	// Remove a sandbox, with its files, after it was stopped for this long. 0: never.
	DeleteAfter Duration `koanf:"delete_after" default:"0"`

	// Prefix key of commands in a session: ctrl- and a letter or one of \ ] ^ _, or none.
	PrefixKey string `koanf:"prefix_key" default:"ctrl-]" old:"chord"`

	// Least severe messages that are logged.
	LogLevel string `koanf:"log_level" default:"info" oneof:"debug info warn error" env:"SBX_"`

	// Limits of sandboxes that ask for none. Unless set here, the backend may lower them to what
	// its machine has.
	Limits Limits `koanf:"limits"`

	// What the sandboxes of one owner may have together.
	Quota Quota `koanf:"quota"`

	// What the sandboxes of all owners may have together.
	Total Total `koanf:"total"`

	// Disk of the engine.
	Disk Disk `koanf:"disk"`

	// Sandboxes that are booted before anybody asks for them.
	Pool Pool `koanf:"pool"`

	// Records of sessions.
	Record Record `koanf:"record"`

	// What is called when a session begins or ceases to need a person.
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
	// Most memory, swap and /dev/shm included.
	Memory Size `koanf:"memory" default:"2g"`

	// Most processor cores.
	CPUs float64 `koanf:"cpus" default:"2"`

	// Most processes and threads.
	PIDs int64 `koanf:"pids" default:"512"`

	// Most of /dev/shm.
	Shm Size `koanf:"shm" default:"64m"`

	// Most open files of a process.
	NoFile int64 `koanf:"nofile" default:"65536"`

	// Most disk that its files occupy, beyond those of its image.
	Disk Size `koanf:"disk" default:"10g"`

	// Most sessions.
	Sessions int64 `koanf:"sessions" default:"32"`

	// Most connections, with network filtered or allowlist.
	Connections int64 `koanf:"connections" default:"1024"`
}

// Quota bounds one owner.
type Quota struct {
	// Most sessions. 0: no limit.
	Sessions int `koanf:"sessions" default:"0"`

	// Most connections, with network filtered or allowlist. 0: half of connections.
	Connections int `koanf:"connections" default:"0"`

	// Most memory that running sandboxes may be allowed. 0: no limit.
	Memory Size `koanf:"memory" default:"0"`

	// Most processor cores of the same. 0: no limit.
	CPUs float64 `koanf:"cpus" default:"0"`

	// Most disk that sandboxes may be allowed, stopped ones included, and that snapshots and other
	// images made for the owner take. 0: no limit.
	Disk Size `koanf:"disk" default:"0"`
}

// Total bounds all owners together.
type Total struct {
	// Most sandboxes. The pool has what is left of it.
	Sandboxes int `koanf:"sandboxes" default:"1000"`

	// Most sandboxes that are not stopped. 0: as many as this machine carries, by memory, threads
	// and open files, at most 1000.
	Running int `koanf:"running" default:"0"`
}

// Disk is about the engine's disk.
type Disk struct {
	// Free space below which nothing is created or started, and the sandbox that writes most is
	// stopped. 0: no such floor.
	MinFree Size `koanf:"min_free" default:"1g"`
}

// Pool says what is pooled.
type Pool struct {
	// Pooled sandboxes of each image. A request for just a name and the image gets one. 0: none.
	Size int `koanf:"size" default:"0"`

	// Images that are pooled. Empty: image.
	Images Words `koanf:"images"`
}

// Record is about what sessions leave on disk.
type Record struct {
	// Largest record of one session; at this size its oldest part is dropped.
	Quota Size `koanf:"quota" default:"256m"`

	// Largest size of a sandbox's records; beyond it those of ended sessions are removed, the
	// oldest first.
	Total Size `koanf:"total" default:"2g"`

	// Remove the record of a session this long after it ended. 0: keep it while there is room.
	Keep Duration `koanf:"keep" default:"0"`

	// What happens to a session that cannot be recorded. best_effort: it goes on. strict: it ends.
	Mode string `koanf:"mode" default:"best_effort" oneof:"best_effort strict"`
}

// RecordStrict is the mode of recording in which a session that cannot be recorded ends.
const RecordStrict = "strict"

// Hook says who is notified.
type Hook struct {
	// Command that receives the event as JSON on stdin: its words, or one line quoted as for a
	// shell. It is not run through a shell.
	Exec Command `koanf:"exec"`

	// URL that receives the event by POST.
	URL string `koanf:"url"`
}

// Python says how Python runs.
type Python struct {
	// Image of sandboxes that python creates, with python3, ipykernel and jupyter_server.
	Image string `koanf:"image" default:"sandboxd/python:latest"`

	// Their network. Empty: network.
	Network Network `koanf:"network" default:"none"`

	// Their memory.
	Memory Size `koanf:"memory" default:"1g"`

	// Their runtime. Empty: isolation.
	Isolation string `koanf:"isolation"`

	// Their options of docker run, as new --docker-option takes them.
	Options Options `koanf:"options"`

	// Interrupt code after this long, unless the call says otherwise.
	Timeout Duration `koanf:"timeout" default:"2m"`

	// End a context, with its variables, after nobody used it for this long. 0: never.
	Idle Duration `koanf:"idle" default:"30m"`

	// Working directory of code in the sandbox, created if it is missing.
	Dir Path `koanf:"dir" default:"/mnt/data"`

	// How sandboxd python draws images on a terminal. auto asks the terminal.
	Images string `koanf:"images" default:"auto" oneof:"auto kitty iterm2 sixel none"`

	// Notes for models about this Python, such as its packages and data; describe shows them.
	About string `koanf:"about"`
}

// OpenAI is a server that speaks OpenAI's Chat Completions.
type OpenAI struct {
	// URL of the server. OPENAI_BASE_URL comes first.
	BaseURL string `koanf:"base_url" default:"https://api.openai.com/v1"`

	// API key. OPENAI_API_KEY comes first.
	APIKey string `koanf:"api_key" secret:"true"`

	// Name of the model. OPENAI_MODEL comes first.
	Model string `koanf:"model"`

	// Time for one answer. One that is silent for a fifth of it is given up.
	Timeout Duration `koanf:"timeout" default:"5m"`
}

// E2B is about clients made for E2B.
type E2B struct {
	// Images by the template names of E2B's clients. Unless listed, base is image and
	// code-interpreter-v1 is sandboxd/python.
	Templates Templates `koanf:"templates"`
}

// AgentRun is about clients made for AgentRun. Its keys are AgentRun's own.
type AgentRun struct {
	// Packages that code may have installed. * is any package; an empty list, or none, is no package.
	DependenciesWhitelist Packages `koanf:"dependencies_whitelist" default:"*"`

	// Packages that the image has already.
	CachedDependencies Words `koanf:"cached_dependencies"`

	// Microseconds of processor time in each tenth of a second.
	CPUQuota int64 `koanf:"cpu_quota" default:"50000"`

	// Memory of the code.
	MemoryLimit Size `koanf:"memory_limit" default:"100m"`

	// Memory and swap of the code together, on a machine with swap.
	MemswapLimit Size `koanf:"memswap_limit" default:"512m"`

	// Kill code after this long; at most 1h.
	Timeout Duration `koanf:"timeout" default:"20s"`

	// Image that code runs in, with python3 and pip. Empty: image.
	Image string `koanf:"image"`

	// Network of the code. Empty: network.
	Network Network `koanf:"network"`

	// What installing packages may connect to, as in allow.
	InstallFrom Words `koanf:"install_from" default:"pypi.org:443 files.pythonhosted.org:443"`

	// Pooled sandboxes of each caller, until ten minutes after the last call.
	Warm int `koanf:"warm" default:"4"`

	// Most calls that run at once; others wait.
	Parallel int `koanf:"parallel" default:"8"`
}

// SandboxLimits returns the limits as a backend takes them.
func (l Limits) SandboxLimits() sandbox.Limits {
	return sandbox.Limits{
		Memory: int64(l.Memory), CPUs: l.CPUs, PIDs: l.PIDs, Shm: int64(l.Shm), NoFile: l.NoFile,
		Disk: int64(l.Disk), Sessions: l.Sessions, Connections: l.Connections,
	}
}

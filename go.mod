module github.com/sandboxd/sandboxd

go 1.26.3

toolchain go1.26.8

require (
	connectrpc.com/connect v1.21.1 // the Connect protocol, as the SDKs of E2B speak it
	github.com/adrg/xdg v0.5.3 // where a user keeps state and configuration
	github.com/chromedp/cdproto v0.159.0 // what tests of the page ask of a browser
	github.com/chromedp/chromedp v0.23.0 // a browser, for them
	github.com/coder/websocket v1.8.15 // terminals and lists of the page
	github.com/containerd/errdefs v1.0.0 // kinds of the engine's errors
	github.com/creack/pty v1.1.24 // terminals, except on Linux
	github.com/danielgtaylor/huma/v2 v2.37.2 // the HTTP API and its description
	github.com/distribution/reference v0.6.0 // names of images
	github.com/docker/cli v29.9.3+incompatible // engines that are reached by ssh
	github.com/docker/go-connections v0.8.2 // TLS to an engine
	github.com/felixge/httpsnoop v1.1.0 // what became of a request, whatever its answer can do
	github.com/gliderlabs/ssh v0.3.8 // a plain SSH server, for tests of hosts
	github.com/go-json-experiment/json v0.0.0-20260820222146-c27c302e5fc3 // JSON that means one thing only, over HTTP
	github.com/go-viper/mapstructure/v2 v2.5.0 // errors of koanf, field by field
	github.com/google/go-cmp v0.7.0 // differences in tests
	github.com/google/go-containerregistry v0.22.1 // images from registries and of docker save
	github.com/google/jsonschema-go v0.4.3 // which arguments an MCP tool takes
	github.com/kballard/go-shellquote v0.0.0-20180428030007-95032a82bc51 // the words of a command line
	github.com/kevinburke/ssh_config v1.6.0 // the user's ssh configuration, where OpenSSH is not there to ask
	github.com/klauspost/compress v1.20.1 // layers by gzip and zstd
	github.com/knadh/koanf/v2 v2.4.1 // merges the sources of the configuration into one struct
	github.com/lmittmann/tint v1.2.1 // the log on a terminal
	github.com/mattn/go-sixel v0.0.14 // pictures for terminals that draw by sixel
	github.com/moby/buildkit v0.33.0 // the parser of Dockerfiles
	github.com/moby/docker-image-spec v1.3.1 // what an image says of its command and environment
	github.com/moby/go-archive v0.3.3 // layers of images, unpacked for overlayfs
	github.com/moby/moby/api v1.56.1 // the engine's types
	github.com/moby/moby/client v0.6.2 // the Docker Engine API
	github.com/moby/patternmatcher v0.6.1 // .dockerignore
	github.com/moby/profiles/apparmor v0.1.0 // Docker's AppArmor profile, for other runtimes
	github.com/moby/profiles/seccomp v0.2.4 // Docker's filter of system calls, for other engines and runtimes
	github.com/moby/sys/userns v0.2.0 // whether this is a user namespace
	github.com/modelcontextprotocol/go-sdk v1.8.0 // MCP
	github.com/opencontainers/go-digest v1.0.0 // digests in the configuration of an image
	github.com/opencontainers/image-spec v1.1.1 // the configuration of an image
	github.com/opencontainers/runtime-spec v1.3.0 // what an OCI runtime reads
	github.com/pkg/sftp v1.13.12 // the guest's SFTP server, the library's client
	github.com/pressly/goose/v3 v3.29.0 // the store's schema versions
	github.com/prometheus/client_golang v1.25.0 // /metrics
	github.com/rivo/uniseg v0.4.7 // the generator of width tables, and their test
	github.com/rogpeppe/go-internal v1.16.0 // testscript: stories of the command line
	github.com/skeema/knownhosts v1.3.3 // host keys of known_hosts files, with hashed names and ports
	github.com/spf13/cobra v1.10.2 // the command table, its help, completion and manual pages
	github.com/spf13/pflag v1.0.10 // the table's flags, to forward them
	github.com/tailscale/hujson v0.0.0-20260727124030-b80ff77dac4f // JSON with comments: devcontainer.json
	github.com/things-go/go-socks5 v0.1.0 // SOCKS5 of the proxy tier
	github.com/vbauerster/mpb/v8 v8.16.2 // progress bars on a terminal
	go.uber.org/goleak v1.3.0 // goroutines that a test left behind
	go.yaml.in/yaml/v3 v3.0.6 // configuration files
	golang.org/x/crypto v0.58.0 // SSH, and cryptobyte for ClientHellos
	golang.org/x/image v0.47.0 // pictures made smaller, and WebP
	golang.org/x/net v0.62.0 // messages of DNS
	golang.org/x/sync v0.24.0 // memory for what sandboxes send, by weight
	golang.org/x/sys v0.49.0 // Linux system calls
	golang.org/x/term v0.47.0 // raw mode, and the line editor of the picker
	golang.org/x/text v0.43.0 // which characters are how old, in the test of width tables
	golang.org/x/time v0.16.0 // the rate of a token's requests
	gopkg.in/natefinch/lumberjack.v2 v2.2.1 // rotation of the daemon's log file
	gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237 // TCP and IP in user space, for sandboxes without a network
	modernc.org/sqlite v1.61.1 // the store, without C
	mvdan.cc/sh/v3 v3.14.1 // whether a command is whole shell syntax
)

require (
	github.com/Microsoft/go-winio v0.6.3 // indirect
	github.com/VividCortex/ewma v1.2.0 // indirect
	github.com/acarl005/stripansi v0.0.0-20180116102854-5a71ef0e047d // indirect
	github.com/agext/levenshtein v1.2.3 // indirect
	github.com/anmitsu/go-shlex v0.0.0-20200514113438-38f4b401e2be // indirect
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/clipperhouse/uax29/v2 v2.7.0 // indirect
	github.com/containerd/errdefs/pkg v0.3.0 // indirect
	github.com/containerd/log v0.1.0 // indirect
	github.com/containerd/typeurl/v2 v2.3.0 // indirect
	github.com/cpuguy83/go-md2man/v2 v2.0.7 // indirect
	github.com/docker/docker-credential-helpers v0.9.8 // indirect
	github.com/docker/go-units v0.5.0 // indirect
	github.com/dustin/go-humanize v1.1.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	github.com/google/btree v1.1.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/inconshreveable/mousetrap v1.1.0 // indirect
	github.com/knadh/koanf/maps v0.1.2 // indirect
	github.com/kr/fs v0.1.0 // indirect
	github.com/mattn/go-isatty v0.0.24 // indirect
	github.com/mattn/go-runewidth v0.0.30 // indirect
	github.com/mfridman/interpolate v0.0.2 // indirect
	github.com/mitchellh/copystructure v1.2.0 // indirect
	github.com/mitchellh/reflectwalk v1.0.2 // indirect
	github.com/moby/sys/sequential v0.7.0 // indirect
	github.com/moby/sys/user v0.4.1 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/ncruces/go-strftime v1.1.0 // indirect
	github.com/pkg/errors v0.9.1 // indirect
	github.com/planetscale/vtprotobuf v0.6.1-0.20240319094008-0393e58bdf10 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/remyoudompheng/bigfft v0.0.0-20230129092748-24d4a6f8daec // indirect
	github.com/russross/blackfriday/v2 v2.1.0 // indirect
	github.com/segmentio/asm v1.2.1 // indirect
	github.com/segmentio/encoding v0.5.4 // indirect
	github.com/sethvargo/go-retry v0.5.0 // indirect
	github.com/sirupsen/logrus v1.10.2 // indirect
	github.com/soniakeys/quant v1.0.0 // indirect
	github.com/tonistiigi/go-csvvalue v0.0.0-20240814133006-030d3b2625d0 // indirect
	github.com/vbauerster/cupwriter v0.0.5 // indirect
	github.com/yosida95/uritemplate/v3 v3.0.2 // indirect
	go.opentelemetry.io/auto/sdk v1.2.1 // indirect
	go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp v0.72.0 // indirect
	go.opentelemetry.io/otel v1.47.0 // indirect
	go.opentelemetry.io/otel/log v1.47.0 // indirect
	go.opentelemetry.io/otel/metric v1.47.0 // indirect
	go.opentelemetry.io/otel/trace v1.47.0 // indirect
	go.uber.org/multierr v1.11.0 // indirect
	golang.org/x/exp v0.0.0-20261014143641-f0251eb4aa3e // indirect
	golang.org/x/oauth2 v0.37.0 // indirect
	golang.org/x/tools v0.52.0 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	modernc.org/libc v1.79.0 // indirect
	modernc.org/mathutil v1.7.1 // indirect
	modernc.org/memory v1.12.1 // indirect
)

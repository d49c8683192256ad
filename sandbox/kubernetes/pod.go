package kubernetes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/kubernetes/cluster"
)

// Labels of pods.
const (
	labelDaemon = "sandboxd.io/daemon"
	labelID     = "sandboxd.io/id"
	// labelClaim is the UID of the claim of a sandbox with a volume.
	labelClaim = "sandboxd.io/claim"
	// labelProbe marks the pods of tests instead of labelID.
	labelProbe = "sandboxd.io/probe"
	// labelNetwork is closed for pods whose packets may not leave them.
	labelNetwork = "sandboxd.io/network"
	closed       = "closed"
)

const (
	container = "sandbox"        // name of the one container
	guestDir  = "/dev/.sandboxd" // where the guest program is
	guestFile = guestDir + "/guest"

	guestPort    = 42022       // of the loopback address of the pod, on which the guest listens
	guestAddress = "@sandboxd" // of an abstract socket, for the guest's relay
)

// capabilities are those of root in a sandbox: what apt, su and a web server need.
var capabilities = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
	"NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}

// plan is what a pod is made from.
type plan struct {
	Daemon, ID   string
	Host         string // host name; empty means the pod's
	Image        string
	GuestImage   string
	ImageVolumes bool
	Runtime      string // RuntimeClass; empty means the cluster's default
	Sudo         bool
	Closed       bool           // no packet leaves the pod
	Probe        bool           // Image has the guest; it is no sandbox
	Node         string         // the only one on which it may run; empty means any
	PullSecrets  []string       // for its images
	Limits       sandbox.Limits // no zero fields
	Volume       sandbox.Volume // none without Claim
	Claim        string         // UID of the claim of the pod's name
	Template     Template       `json:"-"` // of the present configuration
}

// podOf returns the pod of a plan.
func podOf(p plan) cluster.Pod {
	guest := cluster.Volume{Name: "guest"}
	var before []cluster.Container
	if p.ImageVolumes {
		guest.Image = &cluster.ImageVolume{Reference: p.GuestImage, Pull: "IfNotPresent"}
	} else {
		guest.EmptyDir = &cluster.EmptyDir{Size: "64Mi"}
		before = []cluster.Container{{Name: "guest", Image: p.GuestImage, Pull: "IfNotPresent",
			Command: []string{"/guest", "install", "/to/guest"},
			Mounts:  []cluster.VolumeMount{{Name: "guest", Path: "/to"}},
			Resources: cluster.Resources{ // a quota may want them
				Requests: map[string]string{"cpu": "10m", "memory": "16Mi",
					"ephemeral-storage": "1Mi"},
				Limits: map[string]string{"cpu": "500m", "memory": "64Mi",
					"ephemeral-storage": "64Mi"}},
			Security: cluster.ContainerSecurity{User: new(int64), Escalation: new(bool),
				Capabilities: &cluster.Capabilities{Drop: []string{"ALL"}}}}}
	}
	labels := map[string]string{labelDaemon: p.Daemon, labelID: p.ID}
	pod := cluster.Pod{APIVersion: "v1", Kind: "Pod",
		Metadata: cluster.Meta{Name: podName(p.ID), Labels: labels},
		Spec: cluster.PodSpec{
			Restart: "Never", GraceSeconds: number(deleteGrace), MountToken: new(bool),
			ServiceLinks: new(bool), Hostname: p.Host, RuntimeClass: p.Runtime,
			Security:       cluster.PodSecurity{Seccomp: &cluster.Seccomp{Type: "RuntimeDefault"}},
			InitContainers: before,
			Containers: []cluster.Container{{Name: container, Image: p.Image, Pull: "IfNotPresent",
				Command: []string{guestFile, "pod"}, Stdin: true,
				// The end of the guest's log is why it could not start.
				WordPolicy: "FallbackToLogsOnError",
				// The guest is a Go program: the image's variables must not change how it runs.
				Env: []cluster.EnvVar{{Name: "GODEBUG"}, {Name: "GOGC"}, {Name: "GOMAXPROCS"},
					{Name: "GOMEMLIMIT"}, {Name: "GOTRACEBACK"}},
				// A request that is left out would be the limit: few pods would fit on a node.
				Resources: cluster.Resources{
					Requests: map[string]string{"cpu": "10m", "memory": "32Mi",
						"ephemeral-storage": "16Mi"},
					Limits: map[string]string{"memory": strconv.FormatInt(p.Limits.Memory, 10),
						"cpu":               fmt.Sprintf("%dm", int64(p.Limits.CPUs*1000)),
						"ephemeral-storage": strconv.FormatInt(p.Limits.Disk, 10)}},
				Mounts: []cluster.VolumeMount{{Name: "guest", Path: guestDir, ReadOnly: true},
					{Name: "shm", Path: "/dev/shm"}},
				Security: cluster.ContainerSecurity{User: new(int64), Group: new(int64),
					Escalation:   &p.Sudo,
					Capabilities: &cluster.Capabilities{Add: capabilities, Drop: []string{"ALL"}}},
			}},
			Volumes: []cluster.Volume{guest, {Name: "shm", EmptyDir: &cluster.EmptyDir{
				Medium: "Memory", Size: strconv.FormatInt(p.Limits.Shm, 10)}}},
		}}
	if p.Claim != "" {
		labels[labelClaim] = p.Claim
		pod.Spec.Volumes = append(pod.Spec.Volumes, cluster.Volume{Name: "files",
			Claim: &cluster.ClaimVolume{Name: podName(p.ID)}})
		c := &pod.Spec.Containers[0]
		c.Mounts = append(c.Mounts, cluster.VolumeMount{Name: "files", Path: p.Volume.Path})
	}
	if p.Closed {
		labels[labelNetwork] = closed
		// Names are the business of the daemon's proxy.
		pod.Spec.DNSPolicy, pod.Spec.DNS = "None", &cluster.DNS{Nameservers: []string{"127.0.0.1"}}
	}
	for _, name := range p.PullSecrets {
		pod.Spec.PullSecrets = append(pod.Spec.PullSecrets, cluster.Named{Name: name})
	}
	p.Template.addTo(&pod, p.Probe)
	if p.Node != "" {
		pod.Spec.Affinity = cluster.OnNode(p.Node)
	}
	if p.Probe {
		delete(labels, labelID)
		labels[labelProbe] = p.ID
	}
	if p.Probe && !p.Closed { // faster than a sandbox
		s := &pod.Spec
		s.InitContainers, s.Volumes, s.Containers[0].Mounts = nil, nil, nil
		s.Containers[0].Command[0] = "/guest"
	}
	return pod
}

// number returns a pointer to n.
func number(n int64) *int64 { return &n }

// changedBy returns what an admission webhook has changed of a pod in a way that a sandbox must not
// have; empty if nothing.
func changedBy(wanted, made cluster.Pod) string {
	want, got := wanted.Spec, made.Spec
	for name, value := range wanted.Metadata.Labels { // the network policy goes by one of them
		if made.Metadata.Labels[name] != value {
			return "its label " + name + " is another"
		}
	}
	if len(got.Containers) != 1 || len(got.Ephemeral) > 0 {
		return "it has another container"
	}
	if len(got.InitContainers) != len(want.InitContainers) {
		return "it has another init container"
	}
	c, w := got.Containers[0], want.Containers[0]
	var caps cluster.Capabilities
	if c.Security.Capabilities != nil {
		caps = *c.Security.Capabilities
	}
	switch {
	case want.HostUsers != nil && (got.HostUsers == nil || *got.HostUsers != *want.HostUsers):
		return "its user namespace is another"
	case got.HostNetwork || got.HostPID || got.HostIPC || got.SharePID != nil && *got.SharePID:
		return "it shares a namespace"
	case !slices.Equal(c.Command, w.Command) || len(c.Args) > 0:
		return "its command is " + cluster.Printable(strings.Join(append(c.Command, c.Args...), " "))
	case c.Image != w.Image:
		return "its image is " + cluster.Printable(c.Image)
	case !c.Stdin || c.StdinOnce || c.TTY:
		return "its standard input is another"
	case got.Security.Seccomp == nil || *got.Security.Seccomp != *want.Security.Seccomp ||
		c.Security.Seccomp != nil && *c.Security.Seccomp != *want.Security.Seccomp:
		return "its seccomp profile is another"
	case c.Security.Escalation == nil || *c.Security.Escalation != *w.Security.Escalation:
		return "whether it may gain rights"
	case c.Security.Privileged || !slices.Equal(caps.Drop, []string{"ALL"}) ||
		slices.ContainsFunc(caps.Add, func(s string) bool {
			return !slices.Contains(capabilities, s)
		}):
		return "it has more rights"
	case c.Security.User == nil || *c.Security.User != 0:
		return "its user is not 0"
	case got.Restart != want.Restart:
		return "it restarts"
	case got.MountToken == nil || *got.MountToken:
		return "it has the token of a service account"
	}
	for _, v := range got.Volumes {
		if v.HostPath != nil {
			return "it has a directory of the node, in volume " + cluster.Printable(v.Name)
		}
	}
	if got.RuntimeClass != want.RuntimeClass {
		return "its runtime class is " + cluster.Printable(got.RuntimeClass)
	}
	for i, init := range want.InitContainers { // it writes the program that gets the keys
		now := got.InitContainers[i]
		if now.Image != init.Image || !slices.Equal(now.Command, init.Command) ||
			len(now.Args) > 0 || now.Security.Privileged {
			return "its init container is another"
		}
	}
	for _, m := range c.Mounts {
		i := slices.IndexFunc(w.Mounts, func(of cluster.VolumeMount) bool { return of == m })
		if i < 0 {
			return "it has another mount at " + cluster.Printable(m.Path)
		}
	}
	return sourcesChanged(want.Volumes, got.Volumes)
}

// sourcesChanged returns which of the wanted volumes has another source; empty if none.
func sourcesChanged(want, got []cluster.Volume) string {
	for _, v := range want {
		i := slices.IndexFunc(got, func(of cluster.Volume) bool { return of.Name == v.Name })
		if i < 0 || (v.Image == nil) != (got[i].Image == nil) ||
			v.Image != nil && v.Image.Reference != got[i].Image.Reference ||
			(v.EmptyDir == nil) != (got[i].EmptyDir == nil) ||
			(v.Claim == nil) != (got[i].Claim == nil) ||
			v.Claim != nil && *v.Claim != *got[i].Claim {
			return "its volume " + v.Name + " is another"
		}
	}
	return ""
}

package cluster

import "time"

// Meta is what all objects have.
type Meta struct {
	Name            string            `json:"name,omitempty"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	Created         time.Time         `json:"creationTimestamp,omitzero"`
	Deleted         time.Time         `json:"deletionTimestamp,omitzero"`
}

// Pod is a pod, with the fields that sandboxes use or must not have.
type Pod struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   Meta      `json:"metadata"`
	Spec       PodSpec   `json:"spec"`
	Status     PodStatus `json:"status,omitzero"`
}

// PodSpec is how a pod is made.
type PodSpec struct {
	Containers     []Container       `json:"containers"`
	InitContainers []Container       `json:"initContainers,omitempty"`
	Ephemeral      []Container       `json:"ephemeralContainers,omitempty"`
	Volumes        []Volume          `json:"volumes,omitempty"`
	Restart        string            `json:"restartPolicy,omitempty"`
	GraceSeconds   *int64            `json:"terminationGracePeriodSeconds,omitempty"`
	ServiceAccount string            `json:"serviceAccountName,omitempty"`
	MountToken     *bool             `json:"automountServiceAccountToken,omitempty"`
	ServiceLinks   *bool             `json:"enableServiceLinks,omitempty"`
	Security       PodSecurity       `json:"securityContext,omitzero"`
	Hostname       string            `json:"hostname,omitempty"`
	HostNetwork    bool              `json:"hostNetwork,omitempty"`
	HostPID        bool              `json:"hostPID,omitempty"`
	HostIPC        bool              `json:"hostIPC,omitempty"`
	HostUsers      *bool             `json:"hostUsers,omitempty"`
	SharePID       *bool             `json:"shareProcessNamespace,omitempty"`
	DNSPolicy      string            `json:"dnsPolicy,omitempty"`
	DNS            *DNS              `json:"dnsConfig,omitempty"`
	RuntimeClass   string            `json:"runtimeClassName,omitempty"`
	Node           string            `json:"nodeName,omitempty"`
	NodeSelector   map[string]string `json:"nodeSelector,omitempty"`
	PullSecrets    []Named           `json:"imagePullSecrets,omitempty"`
	Affinity       any               `json:"affinity,omitempty"`
	Tolerations    any               `json:"tolerations,omitempty"`
	Spread         any               `json:"topologySpreadConstraints,omitempty"`
	Priority       string            `json:"priorityClassName,omitempty"`
	Scheduler      string            `json:"schedulerName,omitempty"`
}

// Named refers to an object in the same namespace.
type Named struct {
	Name string `json:"name"`
}

// OnNode returns the affinity to one node.
func OnNode(name string) any {
	term := map[string]any{"matchFields": []map[string]any{
		{"key": "metadata.name", "operator": "In", "values": []string{name}}}}
	return map[string]any{"nodeAffinity": map[string]any{
		"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{
			"nodeSelectorTerms": []any{term}}}}
}

// PodSecurity is the securityContext of a pod.
type PodSecurity struct {
	Seccomp *Seccomp `json:"seccompProfile,omitempty"`
}

// Seccomp is a profile of system calls.
type Seccomp struct {
	Type string `json:"type"`
}

// DNS is the configuration of a resolver.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
}

// Container is a container of a pod.
type Container struct {
	Name       string            `json:"name"`
	Image      string            `json:"image"`
	Pull       string            `json:"imagePullPolicy,omitempty"`
	Command    []string          `json:"command,omitempty"`
	Args       []string          `json:"args,omitempty"`
	Workdir    string            `json:"workingDir,omitempty"`
	Env        []EnvVar          `json:"env,omitempty"`
	Stdin      bool              `json:"stdin,omitempty"`
	StdinOnce  bool              `json:"stdinOnce,omitempty"`
	TTY        bool              `json:"tty,omitempty"`
	Resources  Resources         `json:"resources,omitzero"`
	Mounts     []VolumeMount     `json:"volumeMounts,omitempty"`
	Security   ContainerSecurity `json:"securityContext,omitzero"`
	LastWords  string            `json:"terminationMessagePath,omitempty"`
	WordPolicy string            `json:"terminationMessagePolicy,omitempty"`
}

// EnvVar is a variable of a container.
type EnvVar struct {
	Name  string `json:"name"`
	Value string `json:"value,omitempty"`
}

// Resources are what a container gets at least and at most, by the names and units of Kubernetes.
type Resources struct {
	Requests map[string]string `json:"requests,omitempty"`
	Limits   map[string]string `json:"limits,omitempty"`
}

// ContainerSecurity is the securityContext of a container.
type ContainerSecurity struct {
	User         *int64        `json:"runAsUser,omitempty"`
	Group        *int64        `json:"runAsGroup,omitempty"`
	Privileged   bool          `json:"privileged,omitempty"`
	Escalation   *bool         `json:"allowPrivilegeEscalation,omitempty"`
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	Seccomp      *Seccomp      `json:"seccompProfile,omitempty"`
}

// Capabilities are added to those of the runtime, or taken from them, without CAP_.
type Capabilities struct {
	Add  []string `json:"add,omitempty"`
	Drop []string `json:"drop,omitempty"`
}

// VolumeMount is where a volume is in a container.
type VolumeMount struct {
	Name     string `json:"name"`
	Path     string `json:"mountPath"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	SubPath  string `json:"subPath,omitempty"`
}

// Volume is a volume of a pod: one of its fields besides Name is set.
type Volume struct {
	Name     string       `json:"name"`
	Image    *ImageVolume `json:"image,omitempty"`
	EmptyDir *EmptyDir    `json:"emptyDir,omitempty"`
	Claim    *ClaimVolume `json:"persistentVolumeClaim,omitempty"`
	HostPath *struct{}    `json:"hostPath,omitempty"`
}

// ImageVolume has the files of an image.
type ImageVolume struct {
	Reference string `json:"reference"`
	Pull      string `json:"pullPolicy,omitempty"`
}

// EmptyDir is a directory that lives as long as its pod.
type EmptyDir struct {
	Medium string `json:"medium,omitempty"`
	Size   string `json:"sizeLimit,omitempty"`
}

// ClaimVolume has the files of a PersistentVolumeClaim.
type ClaimVolume struct {
	Name string `json:"claimName"`
}

// Claim is a PersistentVolumeClaim.
type Claim struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   Meta      `json:"metadata"`
	Spec       ClaimSpec `json:"spec"`
}

// ClaimSpec is what storage a claim asks for.
type ClaimSpec struct {
	AccessModes  []string  `json:"accessModes"`
	StorageClass *string   `json:"storageClassName,omitempty"` // nil is the cluster's default
	Resources    Resources `json:"resources"`
}

// PodStatus is what became of a pod.
type PodStatus struct {
	Phase      string            `json:"phase,omitempty"` // Pending, Running, Succeeded, Failed, Unknown
	Reason     string            `json:"reason,omitempty"`
	Message    string            `json:"message,omitempty"`
	IP         string            `json:"podIP,omitempty"`
	Conditions []Condition       `json:"conditions,omitempty"`
	Init       []ContainerStatus `json:"initContainerStatuses,omitempty"`
	Containers []ContainerStatus `json:"containerStatuses,omitempty"`
}

// Condition is one fact of a pod.
type Condition struct {
	Type    string `json:"type"`   // such as PodScheduled
	Status  string `json:"status"` // True, False, Unknown
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// ContainerStatus is what became of a container.
type ContainerStatus struct {
	Name     string         `json:"name"`
	Image    string         `json:"image"`
	ImageID  string         `json:"imageID"`
	Restarts int            `json:"restartCount"`
	State    ContainerState `json:"state"`
}

// ContainerState has one field that is not nil.
type ContainerState struct {
	Waiting    *Waiting    `json:"waiting,omitempty"`
	Running    *struct{}   `json:"running,omitempty"`
	Terminated *Terminated `json:"terminated,omitempty"`
}

// Waiting is why a container does not run yet.
type Waiting struct {
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Terminated is how a container ended. The sandbox may have written Message.
type Terminated struct {
	ExitCode int    `json:"exitCode"`
	Signal   int    `json:"signal,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Message  string `json:"message,omitempty"`
}

// The program node is every part of a Kubernetes node but the container runtime: what its name says,
// or its first argument.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // the flag --logging-format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of the clients
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	name := filepath.Base(os.Args[0])
	if name == "node" && len(os.Args) > 1 {
		name, os.Args = os.Args[1], os.Args[1:]
	}
	commands := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": manager.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kubelet": func() *cobra.Command {
			return kubelet.NewKubeletCommand(context.Background())
		},
		"kubectl": kubectl.NewDefaultKubectlCommand,
	}
	switch {
	case name == "etcd":
		etcdmain.Main(append([]string{name}, os.Args[1:]...))
	case name == "pause": // holds the namespaces of a pod
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
		<-signals
	case commands[name] != nil:
		os.Exit(cli.Run(commands[name]()))
	default:
		fmt.Fprintf(os.Stderr, "node: unknown part %q\n", name)
		os.Exit(2)
	}
}

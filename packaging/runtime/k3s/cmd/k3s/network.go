package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gpulab/gpulab/packaging/runtime/k3s/hostip"
	"github.com/k3s-io/k3s/pkg/daemons/config"
	"github.com/k3s-io/k3s/pkg/daemons/executor"
	"github.com/k3s-io/k3s/pkg/executor/embed"
	"github.com/k3s-io/k3s/pkg/util"
	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/wait"
)

func init() {
	executor.Set(&node{})
}

// node is k3s as it is, but for how its network starts.
type node struct{ embed.Embedded }

// updateFor bounds how long the pods' addresses may take. Afterwards k3s ends,
// and is started again by who supervises it.
const updateFor = time.Minute

// CNI starts the network once the API knows the node's pods by its present
// address. The network policy controller takes pods with any other host address
// for those of another machine, and opens what its policies closed: after a
// start with another address, every running pod would be without walls until
// the kubelet has come to it.
func (n *node) CNI(ctx context.Context, wg *sync.WaitGroup, cfg *config.Node) error {
	client, err := util.GetClientSet(cfg.AgentConfig.KubeConfigKubelet)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, time.Second, updateFor, true, func(ctx context.Context) (bool, error) {
		if last = hostip.Update(ctx, client, cfg.AgentConfig.NodeName, cfg.AgentConfig.NodeIPs); last != nil {
			logrus.Warnf("The pods' host addresses are not up to date yet: %v", last)
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("bring the pods' host addresses up to date: %w (%w)", err, last)
	}
	return n.Embedded.CNI(ctx, wg, cfg)
}

package embedk8s

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// RESTConfig returns the administrator's credentials once k3s has written them.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("the cluster's credentials: %w", err)
	}
	// The same certificate as in the file, which is read again when k3s has made a
	// new one.
	tls := filepath.Join(c.k3sDir(), "server", "tls")
	cfg.CertData, cfg.KeyData = nil, nil
	cfg.CertFile, cfg.KeyFile = filepath.Join(tls, "client-admin.crt"), filepath.Join(tls, "client-admin.key")
	// gpulab is one of the few clients; the defaults (5 per second) would
	// throttle start-up.
	cfg.QPS, cfg.Burst = 50, 100
	return cfg, nil
}

// WaitAPI blocks until the Kubernetes API answers that it is ready. what is
// called with the reason for the wait whenever that changes.
func (c *Cluster) WaitAPI(ctx context.Context, what func(string)) (*kubernetes.Clientset, error) {
	var client *kubernetes.Clientset
	err := poll(ctx, 200*time.Millisecond, what, func() (string, error) {
		// Until then, one that a killed gpulab left behind may still be ending.
		if !c.Process().Running {
			return "k3s is starting", nil
		}
		if _, err := os.Stat(c.Kubeconfig()); err != nil {
			return "k3s is starting", nil
		}
		cfg, err := c.RESTConfig()
		if err != nil {
			return "k3s is writing its credentials", nil
		}
		cl, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return "k3s is writing its credentials", nil
		}
		if body, err := cl.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			if len(body) > 0 {
				return "the Kubernetes API is starting", nil
			}
			return "the Kubernetes API does not answer yet", nil
		}
		client = cl
		return "", nil
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for the Kubernetes API: %w", err)
	}
	return client, nil
}

// WaitNode blocks until this machine's node is Ready, at its present address, in
// the words of the k3s that runs now: what stands there from before its start
// says nothing.
func (c *Cluster) WaitNode(ctx context.Context, client kubernetes.Interface, what func(string)) error {
	err := poll(ctx, 250*time.Millisecond, what, func() (string, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, c.cfg.Identity.NodeName, metav1.GetOptions{})
		if err != nil {
			return "the node has not registered yet", nil
		}
		for _, a := range n.Status.Addresses {
			if a.Type == corev1.NodeInternalIP && a.Address != c.address().String() {
				return "the node still has its old address, " + a.Address, nil
			}
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady {
				switch {
				case stale(cond, c.Process().Since):
					return "the node has not reported since its start", nil
				case cond.Status == corev1.ConditionTrue:
					return "", nil
				}
				return cond.Message, nil
			}
		}
		return "the node has not reported yet", nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the node: %w", err)
	}
	return nil
}

// stale tells whether a node said so before k3s began. Its clock has whole seconds.
func stale(cond corev1.NodeCondition, began time.Time) bool {
	return cond.LastHeartbeatTime.Time.Before(began.Truncate(time.Second))
}

// WaitContainerd blocks until containerd answers on its socket: seconds before
// the Kubernetes API does.
func (c *Cluster) WaitContainerd(ctx context.Context, what func(string)) error {
	return poll(ctx, 100*time.Millisecond, what, func() (string, error) {
		if !c.Process().Running {
			return "k3s is starting", nil
		}
		conn, err := net.DialTimeout("unix", containerdSocket, time.Second)
		if err != nil {
			return "containerd is starting", nil
		}
		return "", conn.Close()
	})
}

// poll calls check until it returns no reason to wait.
func poll(ctx context.Context, every time.Duration, what func(string), check func() (string, error)) error {
	last := ""
	for {
		reason, err := check()
		if err != nil {
			return err
		}
		if reason == "" {
			return nil
		}
		if reason != last && what != nil {
			what(reason)
		}
		last = reason
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), errors.New(reason))
		case <-time.After(every):
		}
	}
}

// Admitted tells whether a node of another machine's cluster has credentials of
// its own, so that it needs no token any more.
func (c *Cluster) Admitted() bool {
	_, err := os.Stat(filepath.Join(c.k3sDir(), "agent", "client-kubelet.crt"))
	return err == nil
}

// ClusterTokenPrefix is what a token for this head's cluster begins with: by it
// a node knows that it speaks to the right one.
func (c *Cluster) ClusterTokenPrefix() (string, error) {
	data, err := os.ReadFile(filepath.Join(c.k3sDir(), "server", "node-token"))
	if err != nil {
		return "", fmt.Errorf("the cluster's own token: %w", err)
	}
	prefix, _, ok := strings.Cut(strings.TrimSpace(string(data)), "::")
	if !ok || !strings.HasPrefix(prefix, "K10") {
		return "", errors.New("the cluster's own token is of an unknown form")
	}
	return prefix + "::", nil
}

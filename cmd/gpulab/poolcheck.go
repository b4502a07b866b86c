package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/nodeapi"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/wireguard"
)

// poolCheck is how far the test of a machine's way to the head's pods is.
type poolCheck struct {
	running bool
	took    time.Duration // of one that went well; zero before
	failed  string        // told once, then it is tried again
}

// Check implements nodeapi.Head.
func (p *pool) Check(ctx context.Context, n nodes.Node, pods bool) (nodeapi.Progress, error) {
	var out nodeapi.Progress
	client := p.lab.client.Load()
	if client == nil || !p.lab.canLaunch.Load() {
		out.Detail = "the head itself is still starting"
		return out, nil
	}
	node, err := client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return out, errors.New("the head's Kubernetes does not answer")
	}
	if err != nil {
		out.Detail = "it has not reported to Kubernetes yet"
		return out, nil
	}
	out.Detail = readiness([]corev1.Node{*node})[n.Name]
	out.Node = out.Detail == ""
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.heard[n.Name]
	if m == nil {
		return out, nil
	}
	out.Reading = !m.at.IsZero() && time.Since(m.at) < lostAfter
	switch c := &m.check; {
	case !out.Node || !out.Reading || !pods:
	case c.took > 0:
		out.Pods, out.Detail = true, fmt.Sprintf("a pod here got its answer from one on %s after %s", p.lab.id.NodeName,
			c.took.Round(100*time.Millisecond))
	case c.failed != "":
		out.Failed, c.failed = c.failed, ""
	case !c.running:
		c.running = true
		go p.checkPods(n)
	}
	return out, nil
}

// checkPods notes whether a pod on the machine reaches one on the head.
func (p *pool) checkPods(n nodes.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), checkPatience)
	defer cancel()
	began := time.Now()
	err := poolPods(ctx, p.lab.client.Load(), p.lab.images.Refs()[notebookImage], p.lab.id.NodeName, n.Name,
		wireguard.TunnelPort(p.lab.cfg.Network.Encrypt))
	if err != nil {
		slog.Warn("a pod on a new machine did not reach one on the head", "machine", n.Name, "err", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.heard[n.Name]
	if m == nil {
		return
	}
	m.check.running = false
	if err != nil {
		m.check.failed = err.Error()
		return
	}
	m.check.took = time.Since(began)
}

// Programs of the test: the answer is larger than any packet, so that one that
// networks drop for its size is noticed.
const (
	poolAnswer = `
import http.server, socketserver
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"x" * 100000)
# http.server's own asks name servers for its name before it listens.
socketserver.TCPServer(("", 8080), Answer).serve_forever()
`
	poolAsk = `
import sys, time, urllib.request
end = time.time() + 25
while True:
    try:
        print(len(urllib.request.urlopen("http://%s:8080/", timeout=5).read()))
        sys.exit(0)
    except OSError as e:
        if time.time() > end:
            print(e)
            sys.exit(1)
        time.sleep(0.3)
`
)

// poolPods lets a pod on a machine ask one on the head.
func poolPods(ctx context.Context, client kubernetes.Interface, image, head, node string, tunnel int) error {
	pods := client.CoreV1().Pods(systemNamespace)
	names := [2]string{"pool-check-head-" + node, "pool-check-" + node}
	zero := int64(0)
	remove := func() {
		for _, name := range names {
			_ = pods.Delete(context.WithoutCancel(ctx), name, metav1.DeleteOptions{GracePeriodSeconds: &zero})
		}
	}
	remove() // what an interrupted test left behind
	defer remove()
	start := func(name, on, program string) error {
		for {
			_, err := pods.Create(ctx, poolPod(name, on, image, program), metav1.CreateOptions{})
			if err == nil || !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) ||
				!sleep(ctx, 200*time.Millisecond) {
				return err
			}
		}
	}
	if err := start(names[0], head, poolAnswer); err != nil {
		return fmt.Errorf("the test pod on %s: %w", head, err)
	}
	address, err := waitPod(ctx, client, names[0], func(p *corev1.Pod) (string, bool) {
		return p.Status.PodIP, p.Status.Phase == corev1.PodRunning && p.Status.PodIP != ""
	})
	if err != nil {
		return fmt.Errorf("the test pod on %s did not start: %w", head, err)
	}
	if err := start(names[1], node, fmt.Sprintf(poolAsk, address)); err != nil {
		return fmt.Errorf("the test pod on %s: %w", node, err)
	}
	phase, err := waitPod(ctx, client, names[1], func(p *corev1.Pod) (string, bool) {
		return string(p.Status.Phase), p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
	if err != nil {
		return fmt.Errorf("the test pod on %s did not come to an end: %w; see `gpulab kubectl -n %s get events` on the head",
			node, err, systemNamespace)
	}
	if phase == string(corev1.PodSucceeded) {
		return nil
	}
	why := ""
	if r, err := pods.GetLogs(names[1], &corev1.PodLogOptions{}).Stream(ctx); err == nil {
		data, _ := io.ReadAll(io.LimitReader(r, 1024))
		_ = r.Close()
		why = strings.TrimSpace(string(data))
	}
	return fmt.Errorf("pods on %s do not reach pods on %s (%s): open UDP port %d between the two machines in both "+
		"directions, and see that the network between them takes packets of 1500 bytes", node, head, why, tunnel)
}

func waitPod(ctx context.Context, client kubernetes.Interface, name string,
	done func(*corev1.Pod) (string, bool)) (string, error) {
	for {
		p, err := client.CoreV1().Pods(systemNamespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			if what, ok := done(p); ok {
				return what, nil
			}
			if p.Status.Phase == corev1.PodFailed {
				return "", errors.New(p.Status.Message)
			}
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return "", ctx.Err()
		}
	}
}

func poolPod(name, on, image, program string) *corev1.Pod {
	yes, no, user := true, false, int64(20000)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{
				"app.kubernetes.io/name": "pool-check", "app.kubernetes.io/managed-by": "gpulab",
			},
		},
		Spec: corev1.PodSpec{
			NodeName: on, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
			DNSConfig: notebooks.PodNames(),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Containers: []corev1.Container{{
				Name: "check", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
				Command: []string{"python3", "-c", program},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/nodes"
)

// tellKubernetes labels the nodes of the pool's machines, and takes out nodes
// that are nobody's: a machine that was removed still has credentials of
// Kubernetes', which cannot be revoked, and comes back by itself.
func (p *pool) tellKubernetes(ctx context.Context, client kubernetes.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("the nodes of Kubernetes: %w", err)
	}
	members := map[string]nodes.Node{}
	for _, n := range p.list() {
		members[n.Name] = n
	}
	var errs []error
	for i := range list.Items {
		name := list.Items[i].Name
		n, member := members[name]
		switch {
		case name == p.lab.id.NodeName:
		case member:
			errs = append(errs, p.label(ctx, client, n))
		default:
			// The list may be a moment old, and a machine have joined since.
			if err := p.reread(ctx); err != nil || p.has(name) {
				errs = append(errs, err)
				continue
			}
			slog.Warn("Kubernetes has a node that is no machine of the pool; it is taken out", "node", name)
			errs = append(errs, p.forgetNode(ctx, name, time.Now().Add(time.Hour)))
		}
	}
	return errors.Join(errs...)
}

func (p *pool) has(name string) bool {
	for _, n := range p.list() {
		if n.Name == name {
			return true
		}
	}
	return false
}

// label makes a node's labels say what GPUs it has.
func (p *pool) label(ctx context.Context, client kubernetes.Interface, n nodes.Node) error {
	features, key := p.labelsOf(n)
	if key == "" {
		return nil
	}
	present := map[string]*string{"nvidia.com/gpu.present": nil}
	if n.GPUs != config.GPUsNone {
		present["nvidia.com/gpu.present"] = new("true")
	}
	if err := labelNode(ctx, client, n.Name, present); err != nil {
		return err
	}
	if err := labelFeatures(ctx, client, n.Name, features); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.heard[n.Name]; m != nil {
		m.labelled = key
	}
	return nil
}

// forgetNode takes what Kubernetes has of a machine: the node, if it is from
// before a time, with the password by which it was known, and its pods.
func (p *pool) forgetNode(ctx context.Context, name string, before time.Time) error {
	client := p.lab.client.Load()
	if client == nil {
		return nil // tellKubernetes does it
	}
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	there := err == nil
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("the node %s: %w", name, err)
	}
	if there && !n.CreationTimestamp.Time.Before(before) {
		return nil
	}
	gone := func(err error) error {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	var errs []error
	if there {
		errs = append(errs, gone(client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})))
	}
	errs = append(errs, gone(client.CoreV1().Secrets("kube-system").Delete(ctx, name+".node-password.k3s",
		metav1.DeleteOptions{})))
	pods, err := client.CoreV1().Pods("").List(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String()})
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	now := int64(0)
	for i := range pods.Items {
		pod := &pods.Items[i]
		errs = append(errs, gone(client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &pod.UID},
		})))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take the node %s out of Kubernetes: %w", name, err)
	}
	return nil
}

// tokenLife is how long Kubernetes takes the credential of a new machine.
const tokenLife = 15 * time.Minute

// Token implements nodeapi.Head. It is one of Kubernetes' bootstrap tokens: it
// lets in a node, nothing else, and ends by itself.
func (p *pool) Token(ctx context.Context, n nodes.Node) (string, error) {
	client, cluster := p.lab.client.Load(), p.lab.cluster.Load()
	if client == nil || cluster == nil {
		return "", errStarting
	}
	prefix, err := cluster.ClusterTokenPrefix()
	if err != nil {
		return "", err
	}
	// A machine without credentials of its own is a new one to Kubernetes, and
	// would be refused because of the password of the one before.
	if err := p.forgetNode(ctx, n.Name, time.Now().Add(time.Hour)); err != nil {
		return "", err
	}
	var random [11]byte
	_, _ = rand.Read(random[:]) // never fails
	id, secret := hex.EncodeToString(random[:3]), hex.EncodeToString(random[3:])
	_, err = client.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: "kube-system"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "description": "lets the machine " + n.Name + " in",
			"expiration":                     time.Now().Add(tokenLife).UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true",
			"auth-extra-groups":              "system:bootstrappers:k3s:default-node-token",
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make the machine's first credential: %w", err)
	}
	return prefix + id + "." + secret, nil
}

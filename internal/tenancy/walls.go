package tenancy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
)

// podSecurityVersion pins what "restricted" means: a newer Kubernetes must not
// refuse notebooks that ran under the one before.
const podSecurityVersion = "v1.35"

// walls are everything that keeps a user's pods apart from others', and within
// their share.
type walls struct {
	Namespace *corev1ac.NamespaceApplyConfiguration
	Policies  []*networkingv1ac.NetworkPolicyApplyConfiguration
	Quota     *corev1ac.ResourceQuotaApplyConfiguration
	Bounds    *corev1ac.LimitRangeApplyConfiguration
}

func (t *Tenancy) wallsOf(ctx context.Context, handle string, s *surroundings) (walls, error) {
	var l Limits
	if t.cfg.Limits != nil {
		var err error
		if l, err = t.cfg.Limits(ctx, handle); err != nil {
			return walls{}, fmt.Errorf("what %s may take is not known: %w", handle, err)
		}
	}
	labels := placeLabels(handle)
	for _, mode := range []string{"enforce", "warn", "audit"} {
		labels["pod-security.kubernetes.io/"+mode] = "restricted"
		labels["pod-security.kubernetes.io/"+mode+"-version"] = podSecurityVersion
	}
	return walls{
		Namespace: corev1ac.Namespace(Namespace(handle)).WithLabels(labels),
		Policies:  t.policies(handle, s),
		Quota:     quota(handle, l),
		Bounds:    bounds(handle, l.Container),
	}, nil
}

// apply is server-side, and thereby mends what somebody has changed.
func (w *walls) apply(ctx context.Context, t *Tenancy) error {
	if _, err := t.client.CoreV1().Namespaces().Apply(ctx, w.Namespace, applyOptions); err != nil {
		return fmt.Errorf("the namespace %s: %w", *w.Namespace.Name, err)
	}
	ns := *w.Namespace.Name
	for _, p := range w.Policies {
		if _, err := t.client.NetworkingV1().NetworkPolicies(ns).Apply(ctx, p, applyOptions); err != nil {
			return fmt.Errorf("the network policy of %s: %w", ns, err)
		}
	}
	if _, err := t.client.CoreV1().LimitRanges(ns).Apply(ctx, w.Bounds, applyOptions); err != nil {
		return fmt.Errorf("the limits of containers in %s: %w", ns, err)
	}
	if _, err := t.client.CoreV1().ResourceQuotas(ns).Apply(ctx, w.Quota, applyOptions); err != nil {
		return fmt.Errorf("the quota of %s: %w", ns, err)
	}
	return nil
}

// digest tells walls that differ apart.
func (w *walls) digest() (string, error) {
	text, err := json.Marshal(w)
	return string(text), err
}

// Run keeps everybody's policies and quotas up to date with the machines'
// addresses, groups and limits until ctx ends. Notebooks run on meanwhile.
func (t *Tenancy) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	all := true // gpulab may have been away during a change
	for {
		err := t.follow(ctx, all)
		all = all && err != nil
		if err != nil && ctx.Err() == nil {
			slog.Warn("what notebooks may reach and take is not up to date; trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// follow applies what has changed since it was applied last.
func (t *Tenancy) follow(ctx context.Context, all bool) error {
	if all {
		return t.Refresh(ctx)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.lookAround(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, handle := range slices.Sorted(maps.Keys(t.applied)) {
		errs = append(errs, t.raise(ctx, handle, &s, false))
	}
	return errors.Join(errs...)
}

// Refresh brings the namespaces, policies and quotas of everybody to what they
// should be, such as after somebody has changed or deleted some.
func (t *Tenancy) Refresh(ctx context.Context) error {
	namespaces, err := t.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: UserLabel})
	if err != nil {
		return fmt.Errorf("the users' namespaces: %w", err)
	}
	var errs []error
	for i := range namespaces.Items {
		n := &namespaces.Items[i]
		handle := n.Labels[UserLabel]
		if n.DeletionTimestamp != nil || n.Name != Namespace(handle) {
			continue
		}
		errs = append(errs, t.ensureWalls(ctx, handle))
	}
	return errors.Join(errs...)
}

// ensureWalls makes the namespace and what keeps its pods apart from others'.
func (t *Tenancy) ensureWalls(ctx context.Context, handle string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, err := t.lookAround(ctx)
	if err != nil {
		return err
	}
	return t.raise(ctx, handle, &s, true)
}

// raise applies the walls, anew or only where they have changed. The lock is held.
func (t *Tenancy) raise(ctx context.Context, handle string, s *surroundings, anew bool) error {
	w, err := t.wallsOf(ctx, handle, s)
	if err != nil {
		return err
	}
	digest, err := w.digest()
	if err != nil || !anew && t.applied[handle] == digest {
		return err
	}
	if err := w.apply(ctx, t); err != nil {
		return err
	}
	t.applied[handle] = digest
	return nil
}

// forget ends looking after somebody who is gone.
func (t *Tenancy) forget(handle string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.applied, handle)
}

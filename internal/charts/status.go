package charts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	helmrelease "helm.sh/helm/v3/pkg/release"
)

// ReleaseStatus is one release as it stands in the cluster.
type ReleaseStatus struct {
	Release    string    `json:"release"`
	Namespace  string    `json:"namespace"`
	Chart      string    `json:"chart"`
	Version    string    `json:"version"`    // of the chart
	AppVersion string    `json:"appVersion"` // of the program in it
	State      string    `json:"state"`      // Helm's word: deployed, failed, pending-upgrade …
	Revision   int       `json:"revision"`
	Updated    time.Time `json:"updated"`
	Ready      bool      `json:"ready"`            // deployed, and all its pods are ready now
	Detail     string    `json:"detail,omitempty"` // what is not ready, or why it failed
}

// Status lists the releases that gpulab applied, by namespace and name.
func (m *Manager) Status(ctx context.Context) ([]ReleaseStatus, error) {
	s, err := m.open()
	if err != nil {
		return nil, err
	}
	cfg, _, err := s.helm("", nil)
	if err != nil {
		return nil, err
	}
	list := action.NewList(cfg)
	list.All = true
	list.AllNamespaces = true
	list.StateMask = action.ListAll
	found, err := list.Run()
	if err != nil {
		return nil, fmt.Errorf("listing Helm's releases: %w", err)
	}
	states := []ReleaseStatus{}
	for _, r := range found {
		if r.Labels[digestLabel] == "" {
			continue // somebody else's
		}
		states = append(states, s.status(ctx, r))
	}
	slices.SortFunc(states, func(a, b ReleaseStatus) int {
		return strings.Compare(a.Namespace+"/"+a.Release, b.Namespace+"/"+b.Release)
	})
	return states, nil
}

func (s *session) status(ctx context.Context, r *helmrelease.Release) ReleaseStatus {
	state := ReleaseStatus{
		Release:    r.Name,
		Namespace:  r.Namespace,
		Chart:      r.Chart.Metadata.Name,
		Version:    r.Chart.Metadata.Version,
		AppVersion: r.Chart.Metadata.AppVersion,
		State:      r.Info.Status.String(),
		Revision:   r.Version,
		Updated:    r.Info.LastDeployed.Time,
	}
	if r.Info.Status != helmrelease.StatusDeployed {
		state.Detail = r.Info.Description
		return state
	}
	objects, err := s.objects(r)
	if err != nil {
		state.Detail = err.Error()
		return state
	}
	state.Detail, _ = s.whatIsNotReady(ctx, workloads(objects))
	state.Ready = state.Detail == ""
	return state
}

// objects reads the manifest of a stored release.
func (s *session) objects(r *helmrelease.Release) (kube.ResourceList, error) {
	_, client, err := s.helm(r.Namespace, nil)
	if err != nil {
		return nil, err
	}
	objects, err := client.Build(strings.NewReader(r.Manifest), false)
	if err != nil {
		return nil, fmt.Errorf("reading the stored manifest: %w", err)
	}
	return objects, nil
}

// Remove takes a release out of the cluster; one that is not there is no error.
func (m *Manager) Remove(ctx context.Context, name, namespace string) error {
	return m.Apply(ctx, []Release{{Name: name, Namespace: namespace, Absent: true}}, nil)
}

package charts

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	helmrelease "helm.sh/helm/v3/pkg/release"
	"helm.sh/helm/v3/pkg/storage/driver"
)

const (
	// digestLabel stands on Helm's record of a release (a Secret).
	digestLabel = "gpulab.dev/digest"

	// keptRevisions is how many records of a release stay in the cluster.
	keptRevisions = 5

	// tries is how often a release is begun while the API server does not answer,
	// tryAgainAfter the time between. A small machine that unpacks images beside
	// can need minutes for Kueue's definitions.
	tries         = 5
	tryAgainAfter = 2 * time.Second
)

// job is the work on one release within one Apply.
type job struct {
	*session
	release Release
	started time.Time
	report  func(Event)
}

func (j *job) event(phase Phase, detail string, err error) {
	j.report(Event{
		Release: j.release.Name,
		Phase:   phase,
		Detail:  detail,
		Elapsed: time.Since(j.started),
		Err:     err,
	})
}

// run brings the release to its wanted state and says which end it came to. An
// API server that did not answer says nothing about the release: once more,
// from what is written by now.
func (j *job) run(ctx context.Context) (Phase, string, error) {
	for try := 1; ; try++ {
		phase, why, err := j.once(ctx)
		if err == nil || try == tries || !unanswered(err) {
			return phase, why, err
		}
		j.log.Info("Kubernetes did not answer; trying again", "release", j.release.Name, "try", try, "err", err)
		j.event(Waiting, "Kubernetes is too busy to answer; trying again", nil)
		select {
		case <-ctx.Done():
			return "", "", err
		case <-time.After(tryAgainAfter):
		}
	}
}

// once is one try of run.
func (j *job) once(ctx context.Context) (Phase, string, error) {
	limit := j.release.Timeout
	if limit == 0 {
		limit = defaultTimeout
	}
	wait := func(objects kube.ResourceList) error { return j.waitReady(ctx, limit, objects) }

	j.event(Checking, "", nil)
	cfg, client, err := j.helm(j.release.Namespace, wait)
	if err != nil {
		return "", "", err
	}
	last, err := lastRevision(cfg, j.release.Name)
	if err != nil {
		return "", "", err
	}
	if j.release.Absent {
		if last == nil {
			return Unchanged, "", nil
		}
		return j.remove(cfg)
	}
	digest, err := j.release.digest()
	if err != nil {
		return "", "", err
	}
	if last == nil {
		return j.install(ctx, cfg, digest)
	}
	if err := j.recover(cfg, last); err != nil {
		return "", "", err
	}
	if last.Info.Status != helmrelease.StatusDeployed || last.Labels[digestLabel] != digest {
		return j.upgrade(ctx, cfg, digest, Upgraded, "")
	}
	drift, err := j.drift(ctx, client, last.Manifest)
	if err != nil {
		return "", "", err
	}
	if drift != "" {
		return j.upgrade(ctx, cfg, digest, Repaired, drift)
	}
	if j.release.Background {
		return Unchanged, "", nil
	}
	objects, err := client.Build(strings.NewReader(last.Manifest), false)
	if err != nil {
		return "", "", fmt.Errorf("reading the stored manifest: %w", err)
	}
	// The same objects may still be starting: after a reboot, or after an
	// Apply that was interrupted while it waited.
	if err := wait(objects); err != nil {
		return "", "", err
	}
	return Unchanged, "", nil
}

// lastRevision returns Helm's newest record of a release, nil if there is none.
func lastRevision(cfg *action.Configuration, name string) (*helmrelease.Release, error) {
	last, err := cfg.Releases.Last(name)
	if errors.Is(err, driver.ErrReleaseNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Helm's records: %w", err)
	}
	return last, nil
}

// recover turns a record that a kill left in the middle into a failed one.
// Helm refuses to go on from the former, from the latter an upgrade starts.
// That is safe: Manager.applying makes sure that nobody is still at it.
func (j *job) recover(cfg *action.Configuration, last *helmrelease.Release) error {
	switch last.Info.Status {
	case helmrelease.StatusDeployed, helmrelease.StatusFailed, helmrelease.StatusSuperseded:
		return nil
	}
	j.log.Info("finishing an interrupted release", "release", last.Name, "state", last.Info.Status)
	last.Info.Description = fmt.Sprintf("interrupted while %s", last.Info.Status)
	last.Info.Status = helmrelease.StatusFailed
	if err := cfg.Releases.Update(last); err != nil {
		return fmt.Errorf("recovering an interrupted release: %w", err)
	}
	return nil
}

// install makes the release for the first time. If it does not become ready it
// is removed again, so that nothing half-done stays; if the API server did not
// answer, the next try goes on from what there is.
func (j *job) install(ctx context.Context, cfg *action.Configuration, digest string) (Phase, string, error) {
	chart, err := loadChart(j.release.Chart)
	if err != nil {
		return "", "", err
	}
	j.event(Applying, "", nil)
	install := action.NewInstall(cfg)
	install.ReleaseName = j.release.Name
	install.Namespace = j.release.Namespace
	install.Labels = map[string]string{digestLabel: digest}
	install.PostRenderer = askAsWritten{}
	install.SkipCRDs = true
	install.DisableHooks = true
	install.DisableOpenAPIValidation = true // tests hold the charts against the schema
	install.TakeOwnership = true            // what a lost record left behind becomes ours again
	install.Wait = !j.release.Background
	_, err = install.Run(chart, j.release.Values)
	err = plain(err)
	if err == nil {
		return Installed, "", nil
	}
	if ctx.Err() != nil || unanswered(err) || j.neverRecorded(cfg) {
		return "", "", err
	}
	j.event(RollingBack, "removing it again", nil)
	if _, _, undo := j.remove(cfg); undo != nil {
		err = errors.Join(err, fmt.Errorf("removing it again: %w", undo))
	}
	return "", "", err
}

// neverRecorded reports whether Helm refused the release before it wrote
// anything: values against the schema, a template that fails.
func (j *job) neverRecorded(cfg *action.Configuration) bool {
	last, err := lastRevision(cfg, j.release.Name)
	return err == nil && last == nil
}

// upgrade writes the wanted state over the present one and goes back to the
// last good revision if it does not become ready. It also repairs: Helm
// compares old manifest, live objects and new manifest, and writes whatever
// differs or is missing.
func (j *job) upgrade(ctx context.Context, cfg *action.Configuration, digest string, done Phase,
	why string) (Phase, string, error) {
	chart, err := loadChart(j.release.Chart)
	if err != nil {
		return "", "", err
	}
	good, err := lastGood(cfg, j.release.Name)
	if err != nil {
		return "", "", err
	}
	j.event(Applying, why, nil)
	upgrade := action.NewUpgrade(cfg)
	upgrade.Namespace = j.release.Namespace
	upgrade.Labels = map[string]string{digestLabel: digest}
	upgrade.PostRenderer = askAsWritten{}
	upgrade.SkipCRDs = true
	upgrade.DisableHooks = true
	upgrade.DisableOpenAPIValidation = true
	upgrade.TakeOwnership = true
	upgrade.ResetValues = true
	upgrade.MaxHistory = keptRevisions
	upgrade.Force = j.release.Replace
	upgrade.Wait = !j.release.Background
	if why != "" {
		upgrade.Description = "Repaired: " + why
	}
	_, err = upgrade.Run(j.release.Name, chart, j.release.Values)
	err = plain(err)
	if err == nil {
		return done, why, nil
	}
	if ctx.Err() != nil || unanswered(err) || good == nil || good.Labels[digestLabel] == digest {
		// Without an answer nothing is known of the release, and without another
		// good revision there is nothing to go back to.
		return "", "", err
	}
	last, lerr := lastRevision(cfg, j.release.Name)
	if lerr == nil && last != nil && last.Version == good.Version {
		return "", "", err // refused before anything was written
	}
	j.event(RollingBack, fmt.Sprintf("to revision %d", good.Version), nil)
	if undo := j.rollback(ctx, good.Version); undo != nil {
		return "", "", errors.Join(err, fmt.Errorf("going back to revision %d: %w", good.Version, undo))
	}
	return "", "", &TakenBackError{err}
}

// lastGood returns the revision that was last seen ready, nil if there is none.
func lastGood(cfg *action.Configuration, name string) (*helmrelease.Release, error) {
	good, err := cfg.Releases.Deployed(name)
	if errors.Is(err, driver.ErrNoDeployedReleases) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading Helm's records: %w", err)
	}
	return good, nil
}

// rollback returns to a revision, which has the usual time to become ready: the
// release's own is how long the new one may take.
func (j *job) rollback(ctx context.Context, version int) error {
	cfg, _, err := j.helm(j.release.Namespace, func(objects kube.ResourceList) error {
		return j.waitReady(ctx, defaultTimeout, objects)
	})
	if err != nil {
		return err
	}
	rollback := action.NewRollback(cfg)
	rollback.Version = version
	rollback.DisableHooks = true
	rollback.MaxHistory = keptRevisions
	rollback.Force = j.release.Replace
	rollback.Wait = true
	return rollback.Run(j.release.Name)
}

// remove takes the release out of the cluster.
func (j *job) remove(cfg *action.Configuration) (Phase, string, error) {
	uninstall := action.NewUninstall(cfg)
	uninstall.DisableHooks = true
	uninstall.DeletionPropagation = "background"
	// Helm's own IgnoreNotFound would take any error for a release that is not there.
	if _, err := uninstall.Run(j.release.Name); err != nil && !errors.Is(err, driver.ErrReleaseNotFound) {
		return "", "", fmt.Errorf("removing: %w", err)
	}
	return Removed, "", nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"

	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/notebooks"
)

// cordons keeps machines as the database wants them: those that take no new
// work have a taint in Kubernetes, whatever was done to it by hand, and those
// that are to be empty are so at their time. A restart of gpulab changes nothing.
type cordons struct {
	lab  *appliance
	wake chan struct{}

	mu   sync.Mutex
	list map[string]nodes.Cordon // by machine
}

// cordonsEvery is how often Kubernetes and the clock are held against them.
const cordonsEvery = 2 * time.Second

func newCordons(ctx context.Context, l *appliance) (*cordons, error) {
	c := &cordons{lab: l, wake: make(chan struct{}, 1)}
	return c, c.reread(ctx)
}

// of is what is wanted of a machine, false where nothing is.
func (c *cordons) of(machine string) (nodes.Cordon, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.list[machine]
	return found, ok
}

// reason is why a machine takes no new work, for who waits for it.
func (c *cordons) reason(machine string) string {
	found, _ := c.of(machine)
	return found.Reason
}

// reread takes them from the database, and tells the pages.
func (c *cordons) reread(ctx context.Context) error {
	list, err := c.lab.pool.registry.Cordons(ctx)
	if err := errors.Join(err, c.lab.rereadLimits(ctx)); err != nil { // groups come and go
		return err
	}
	c.mu.Lock()
	c.list = list
	c.mu.Unlock()
	why := map[string]string{}
	for machine, cordon := range list {
		cordon.Machine = c.lab.called(machine)
		why[machine] = cordonSentence(cordon)
	}
	c.lab.fleet.Cordon(why)
	return nil
}

// changed puts a change into force.
func (c *cordons) changed(ctx context.Context) error {
	if err := c.reread(ctx); err != nil {
		return err
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// run keeps machines so until ctx ends.
func (c *cordons) run(ctx context.Context) error {
	failing := ""
	for {
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			if err.Error() != failing {
				failing = err.Error()
				slog.Warn("which machines take work is not as it should be; trying again", "err", err)
			}
		} else {
			failing = ""
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-time.After(cordonsEvery):
		}
	}
}

func (c *cordons) look(ctx context.Context) error {
	client, parts := c.lab.client.Load(), c.lab.attached.Load()
	if client == nil || parts == nil {
		return nil
	}
	if err := c.reread(ctx); err != nil {
		return err
	}
	var errs []error
	for name, is := range parts.kube.Marks() {
		_, wanted := c.of(name)
		if is.Unschedulable {
			slog.Warn("a machine was closed in Kubernetes by hand; it is opened again, since `gpulab nodes cordon` is "+
				"what counts",
				"machine", name)
		}
		if is.Cordoned != wanted || is.Unschedulable {
			errs = append(errs, markNode(ctx, client, name, wanted))
		}
	}
	return errors.Join(append(errs, c.empty(ctx, parts, time.Now()))...)
}

// markNode puts the taint on a node or takes it off.
func markNode(ctx context.Context, client kubernetes.Interface, name string, closed bool) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == notebooks.CordonTaint })
		if closed {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: notebooks.CordonTaint, Effect: corev1.TaintEffectNoSchedule})
		}
		n.Spec.Unschedulable = false
		_, err = client.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("tell Kubernetes whether %s takes work: %w", name, err)
	}
	return nil
}

// empty ends the notebooks on machines whose time has come.
func (c *cordons) empty(ctx context.Context, parts *attached, now time.Time) error {
	var errs []error
	for _, p := range parts.kube.Notebooks() {
		cordon, ok := c.of(p.Node)
		if !ok || cordon.EmptyAt.IsZero() || now.Before(cordon.EmptyAt) || p.Finished || p.Terminating || p.LaunchID == 0 {
			continue
		}
		launch, err := parts.notebooks.Get(ctx, p.LaunchID)
		if err != nil || launch.State == notebooks.Stopping || launch.State == notebooks.Ended {
			errs = append(errs, err)
			continue
		}
		text := fmt.Sprintf("It was interrupted: %s was emptied%s. What is saved is in your home; %s.", c.lab.called(p.Node),
			inBrackets(cordon.Reason),
			c.lab.orElsewhere("you can start it again, on another machine",
				"you can start it again once the machine takes work"))
		if err := parts.notebooks.StopForMachine(ctx, launch.ID, text); err != nil {
			errs = append(errs, err)
			continue
		}
		c.lab.auditSystem(ctx, "node.stop", launch.Handle, launch.Name+" on "+p.Node)
	}
	return errors.Join(errs...)
}

// cordonSentence says for everybody that a machine takes no new work.
func cordonSentence(c nodes.Cordon) string {
	text := c.Machine + " takes no new work"
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	text = strings.TrimRight(text, ".") + "."
	switch {
	case c.EmptyAt.IsZero():
	case time.Now().After(c.EmptyAt):
		text += " It was emptied " + atTime(c.EmptyAt) + "."
	default:
		text += " It is being emptied; notebooks there end " + atTime(c.EmptyAt) + "."
	}
	return text
}

// atTime is a time of the next days: "at 16:30", "on Tue at 16:30".
func atTime(t time.Time) string {
	t = t.Local()
	if y, m, d := time.Now().Date(); t.Year() == y && t.Month() == m && t.Day() == d {
		return "at " + t.Format("15:04")
	}
	return "on " + t.Format("Mon 2 Jan at 15:04")
}

// orElsewhere chooses between what is said where notebooks may run on several
// machines, and where they have only one.
func (l *appliance) orElsewhere(several, one string) string {
	if len(l.pool.list()) > 0 && l.stayHome() == "" {
		return several
	}
	return one
}

func inBrackets(text string) string {
	if text == "" {
		return ""
	}
	return " (" + text + ")"
}

// emptying is what somebody is told who has notebooks on machines that are
// being emptied.
func (l *appliance) emptying(handle string) []string {
	parts := l.attached.Load()
	if parts == nil || l.cordons == nil {
		return nil
	}
	var list []string
	for _, p := range parts.kube.Notebooks() {
		cordon, ok := l.cordons.of(p.Node)
		if !ok || cordon.EmptyAt.IsZero() || p.Handle != handle || p.Finished || p.Terminating {
			continue
		}
		name := p.Server
		if launch, err := parts.notebooks.Get(context.Background(), p.LaunchID); err == nil && launch.Title != "" {
			name = launch.Title
		}
		list = append(list,
			fmt.Sprintf("%s is being emptied%s. Your notebook “%s” there ends %s: save your work. You can %s.",
				l.called(p.Node), inBrackets(cordon.Reason), name, atTime(cordon.EmptyAt),
				l.orElsewhere("stop it and start it again before that; it then runs on another machine",
					"start it again once the machine takes work")))
	}
	slices.Sort(list)
	return list
}

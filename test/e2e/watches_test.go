//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// testWatches: who lists and then watches from there, as everything in
// Kubernetes does, hears of all that comes, also of what was written in the
// moment of the list.
func testWatches(t *testing.T, a *appliance) {
	content, err := os.ReadFile(a.Path("/var/lib/gpulab/kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	access, err := clientcmd.RESTConfigFromKubeConfig(content)
	if err != nil {
		t.Fatal(err)
	}
	access.Dial = a.DialHost
	access.QPS, access.Burst = 1000, 1000
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		t.Fatal(err)
	}
	const rounds, writers = 60, 4
	ctx, cancel := context.WithTimeout(a.ctx, 2*time.Minute)
	defer cancel()
	all := client.CoreV1().ConfigMaps("default")
	written, writing := errgroup.WithContext(ctx)
	stop := make(chan struct{})
	var made atomic.Int64
	for i := range writers { // as fast as it goes, so that each list meets writes
		written.Go(func() error {
			for j := 0; ; j++ {
				select {
				case <-stop:
					return nil
				default:
				}
				_, err := all.Create(writing, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("watched-%d-%d", i, j), Labels: map[string]string{"watched": "1"}}}, metav1.CreateOptions{})
				if err != nil {
					return err
				}
				made.Add(1)
			}
		})
	}
	watched := metav1.ListOptions{LabelSelector: "watched=1"}
	type ear struct {
		heard map[string]bool
		watch watch.Interface
	}
	var ears []ear
	for range rounds {
		list, err := all.List(ctx, watched)
		if err != nil {
			t.Fatal(err)
		}
		from := watched
		from.ResourceVersion = list.ResourceVersion
		w, err := all.Watch(ctx, from)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Stop()
		e := ear{map[string]bool{}, w}
		for _, m := range list.Items {
			e.heard[m.Name] = true
		}
		ears = append(ears, e)
	}
	close(stop)
	if err := written.Wait(); err != nil {
		t.Fatal(err)
	}
	n := int(made.Load())
	for i, e := range ears {
		for quiet := false; len(e.heard) < n && !quiet; {
			select {
			case event, open := <-e.watch.ResultChan():
				if m, ok := event.Object.(*corev1.ConfigMap); ok && event.Type == watch.Added {
					e.heard[m.Name] = true
				}
				quiet = !open
			case <-time.After(10 * time.Second):
				quiet = true
			}
		}
		if len(e.heard) != n {
			t.Errorf("the watch of round %d heard of %d of the %d objects", i, len(e.heard), n)
			break
		}
	}
	t.Logf("%d watches, begun while %d objects were written", rounds, n)
	if err := all.DeleteCollection(ctx, metav1.DeleteOptions{}, watched); err != nil {
		t.Error(err)
	}
}

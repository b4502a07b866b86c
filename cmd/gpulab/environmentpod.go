package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/tenancy"
)

// environmentPod builds environments in a pod, one at a time. It may write to three folders and reach the internet,
// and nothing else: neither the lab's machines nor what runs in the cluster.
type environmentPod struct {
	client kubernetes.Interface
	node   string // the head's
	env    map[string]string
	// forbidden are the networks of the lab itself.
	forbidden func() ([]netip.Prefix, error)
}

const buildName = "environment-build"

// buildMemory bounds what pip may take: the largest packages of today need a quarter of it.
const buildMemory = "4Gi"

func (b environmentPod) run(ctx context.Context, job environments.Job) error {
	if err := b.stop(ctx); err != nil {
		return err
	}
	if err := b.wall(ctx); err != nil {
		return fmt.Errorf("the network policy of the build: %w", err)
	}
	defer func() {
		// Until it is gone it writes, and its folders are about to be taken over or deleted.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = b.stop(ctx)
	}()
	for {
		_, err := b.client.CoreV1().Pods(systemNamespace).Create(ctx, b.pod(job), metav1.CreateOptions{})
		if err == nil {
			break
		}
		if !apierrors.IsAlreadyExists(err) && !apierrors.IsForbidden(err) || !sleep(ctx, 200*time.Millisecond) {
			return err
		}
	}
	started := func(p *corev1.Pod) (string, bool) {
		return "", p.Status.Phase != corev1.PodPending && p.Status.Phase != ""
	}
	if _, err := waitPod(ctx, b.client, buildName, started); err != nil {
		return fmt.Errorf("the pod that builds did not start: %w", err)
	}
	var rest []string
	for {
		p, err := b.follow(ctx, job, &rest)
		if err != nil {
			return err
		}
		switch p.Status.Phase {
		case corev1.PodSucceeded:
			return nil
		case corev1.PodFailed:
			return errors.New(whyFailed(p, rest))
		}
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// follow passes on what the pod says until it ends or that breaks off, and returns how the pod is then. rest are its
// last lines.
func (b environmentPod) follow(ctx context.Context, job environments.Job, rest *[]string) (*corev1.Pod, error) {
	since := int64(2)
	options := &corev1.PodLogOptions{Follow: true}
	if len(*rest) > 0 {
		options.SinceSeconds = &since
	}
	if stream, err := b.client.CoreV1().Pods(systemNamespace).GetLogs(buildName, options).Stream(ctx); err == nil {
		lines := bufio.NewScanner(stream)
		lines.Buffer(nil, 256<<10)
		for lines.Scan() {
			if line := strings.TrimSpace(lines.Text()); line != "" {
				job.Say(line)
				if *rest = append(*rest, line); len(*rest) > 5 {
					*rest = slices.Delete(*rest, 0, 1)
				}
			}
		}
		_ = stream.Close()
	}
	p, err := b.client.CoreV1().Pods(systemNamespace).Get(ctx, buildName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, errors.New("its pod was deleted")
	}
	if err != nil && ctx.Err() == nil {
		return &corev1.Pod{}, nil // Kubernetes is away for a moment
	}
	return p, err
}

func whyFailed(p *corev1.Pod, rest []string) string {
	for _, c := range p.Status.ContainerStatuses {
		if t := c.State.Terminated; t != nil && t.Reason == "OOMKilled" {
			return "pip needed more than " + buildMemory + " of memory"
		}
	}
	if p.Status.Message != "" {
		return p.Status.Message
	}
	return strings.Join(rest, " ")
}

// stop ends a build's pod, and returns once it is gone.
func (b environmentPod) stop(ctx context.Context) error {
	pods, zero := b.client.CoreV1().Pods(systemNamespace), int64(1)
	for end := time.Now().Add(time.Minute); ; {
		err := pods.Delete(ctx, buildName, metav1.DeleteOptions{GracePeriodSeconds: &zero})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if time.Now().After(end) {
			return errors.Join(errors.New("the pod that builds environments does not end"), err)
		}
		if !sleep(ctx, 200*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// wall lets the pod reach name servers and what is outside the lab.
func (b environmentPod) wall(ctx context.Context) error {
	forbidden, err := b.forbidden()
	if err != nil {
		return err
	}
	for _, own := range []string{"127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4"} {
		forbidden = append(forbidden, netip.MustParsePrefix(own))
	}
	except, _ := tenancy.Without(netip.MustParsePrefix("0.0.0.0/0"), forbidden)
	world := networkingv1ac.IPBlock().WithCIDR("0.0.0.0/0")
	for _, e := range except {
		world.WithExcept(e.String())
	}
	dns := networkingv1ac.NetworkPolicyPeer().
		WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(
			map[string]string{"kubernetes.io/metadata.name": "kube-system"})).
		WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"k8s-app": "kube-dns"}))
	port := func(p corev1.Protocol) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
		return networkingv1ac.NetworkPolicyPort().WithProtocol(p).WithPort(intstr.FromInt32(53))
	}
	policy := networkingv1ac.NetworkPolicy(buildName,
		systemNamespace).WithLabels(map[string]string{tenancy.ManagedLabel: "gpulab"}).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{"app.kubernetes.io/name": buildName})).
			WithPolicyTypes(networkingv1.PolicyTypeEgress).
			WithEgress(
				networkingv1ac.NetworkPolicyEgressRule().WithTo(dns).WithPorts(port(corev1.ProtocolUDP), port(corev1.ProtocolTCP)),
				networkingv1ac.NetworkPolicyEgressRule().WithTo(networkingv1ac.NetworkPolicyPeer().WithIPBlock(world)),
			))
	_, err = b.client.NetworkingV1().NetworkPolicies(systemNamespace).Apply(ctx, policy, applyOptions)
	return err
}

// authorities are Debian's and Ubuntu's list of whom a machine trusts, an authority of the
// institution included.
const authorities = "/etc/ssl/certs/ca-certificates.crt"

func (b environmentPod) pod(job environments.Job) *corev1.Pod {
	yes, no, user := true, false, int64(environments.BuildUID)
	folder, scratch := corev1.HostPathDirectory, resource.MustParse("8Gi")
	env := []corev1.EnvVar{{Name: "HOME", Value: "/tmp"}, {Name: "PIP_CACHE_DIR", Value: environments.CachePath},
		// It has a cache of its own, and no way to that of notebooks.
		{Name: "PIP_CONFIG_FILE", Value: os.DevNull}}
	for name, value := range b.env {
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	var volumes []corev1.Volume
	var mounts []corev1.VolumeMount
	for _, m := range []struct{ name, path, at string }{
		{"environment", job.Environment, job.Target}, {"work", job.Work, environments.WorkPath},
		{"cache", job.Cache, environments.CachePath},
	} {
		volumes = append(volumes, corev1.Volume{
			Name: m.name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.path, Type: &folder}},
		})
		mounts = append(mounts, corev1.VolumeMount{Name: m.name, MountPath: m.at})
	}
	if _, err := os.Stat(authorities); err == nil { // else those that the image trusts
		trust := filepath.Dir(authorities)
		env = append(env, corev1.EnvVar{Name: "PIP_CERT", Value: authorities},
			corev1.EnvVar{Name: "SSL_CERT_FILE", Value: authorities})
		volumes = append(volumes, corev1.Volume{
			Name: "authorities", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: trust,
				Type: &folder}},
		})
		mounts = append(mounts, corev1.VolumeMount{Name: "authorities", MountPath: trust, ReadOnly: true})
	}
	volumes = append(volumes, corev1.Volume{
		Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &scratch}},
	})
	mounts = append(mounts, corev1.VolumeMount{Name: "scratch", MountPath: "/tmp"})
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: buildName, Labels: map[string]string{"app.kubernetes.io/name": buildName, tenancy.ManagedLabel: "gpulab"},
		},
		Spec: corev1.PodSpec{
			NodeName: b.node, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no,
			EnableServiceLinks: &no, DNSConfig: notebooks.PodNames(),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: volumes,
			Containers: []corev1.Container{{
				Name: "build", Image: job.Image, ImagePullPolicy: corev1.PullIfNotPresent, WorkingDir: "/tmp",
				Command: job.Command, Env: env, VolumeMounts: mounts,
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{
						corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("64Mi"),
					},
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(buildMemory)},
				},
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
}

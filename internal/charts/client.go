package charts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/kube"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// requestTimeout ends a request to an API server that has stopped answering. It
	// gives up by itself after a minute; a slow machine under load can need most of
	// that to compare a large definition.
	requestTimeout = time.Minute

	// managedLabel marks namespaces that gpulab made for its own parts.
	managedLabel = "app.kubernetes.io/managed-by"
)

// session is one connection to the cluster, shared by the releases of one call.
type session struct {
	log    *slog.Logger
	getter *restGetter
	client kubernetes.Interface
}

func (m *Manager) open() (*session, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: m.kubeconfig}, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", m.kubeconfig, err)
	}
	config.Timeout = requestTimeout
	// The default of 5 requests a second is meant for programs on somebody
	// else's API server; this one is ours and on this machine.
	config.QPS, config.Burst = 100, 200
	config.WarningHandler = rest.NoWarnings{}
	config.UserAgent = "gpulab-charts"

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("connecting to the cluster: %w", err)
	}
	cache := memory.NewMemCacheClient(client.Discovery())
	return &session{
		log:    m.log,
		client: client,
		getter: &restGetter{
			config: config,
			loader: loader,
			cache:  cache,
			mapper: restmapper.NewDeferredDiscoveryRESTMapper(cache),
		},
	}, nil
}

// helm prepares Helm for one namespace. wait decides when a release is ready.
func (s *session) helm(namespace string,
	wait func(kube.ResourceList) error) (*action.Configuration, *kubeClient, error) {
	cfg := new(action.Configuration)
	debug := func(format string, args ...any) {
		s.log.Debug("helm: " + fmt.Sprintf(format, args...))
	}
	if err := cfg.Init(s.getter.in(namespace), namespace, "secret", debug); err != nil {
		return nil, nil, fmt.Errorf("preparing Helm: %w", err)
	}
	client, ok := cfg.KubeClient.(*kube.Client)
	if !ok {
		return nil, nil, fmt.Errorf("preparing Helm: unexpected client %T", cfg.KubeClient)
	}
	client.Namespace = namespace
	kc := &kubeClient{Client: client, wait: wait}
	cfg.KubeClient = kc
	return cfg, kc, nil
}

// kubeClient is Helm's client with gpulab's idea of waiting: it says what it
// waits for and stops with the caller's context, which Helm's own does not.
type kubeClient struct {
	*kube.Client
	wait func(kube.ResourceList) error
}

// Wait implements [kube.Interface]; the time limit is part of wait's context.
func (k *kubeClient) Wait(resources kube.ResourceList, _ time.Duration) error {
	return k.wait(resources)
}

// Create implements [kube.Interface], one object after the other: fifteen large
// definitions at once keep a small machine's API server busy past its own limit.
func (k *kubeClient) Create(resources kube.ResourceList) (*kube.Result, error) {
	for _, r := range resources {
		if _, err := k.Client.Create(kube.ResourceList{r}); err != nil {
			return nil, err
		}
	}
	return &kube.Result{Created: resources}, nil
}

// unanswered reports whether the API server did not come to an answer: it was
// too busy, or away.
func unanswered(err error) bool {
	if _, notReady := errors.AsType[notReadyError](err); err == nil || notReady {
		return false // it quotes what pods say, and that may be anything
	}
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsTooManyRequests(err) ||
		utilnet.IsTimeout(err) || utilnet.IsConnectionRefused(err) || utilnet.IsConnectionReset(err) ||
		utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err) ||
		slices.ContainsFunc(noAnswers, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// noAnswers are errors of the API server and of its client in words: of those of
// an upgrade Helm keeps no more.
var noAnswers = []string{
	"request did not complete within",
	"unable to return a response in the time allotted",
	"currently unable to handle the request",
	"Client.Timeout exceeded",
	"connection refused",
	"connection reset by peer",
	"http2: client connection lost",
}

// ensureNamespaces makes the namespaces of releases that are to exist.
func (s *session) ensureNamespaces(ctx context.Context, releases []Release) error {
	seen := map[string]bool{}
	for _, r := range releases {
		if r.Absent || seen[r.Namespace] {
			continue
		}
		seen[r.Namespace] = true
		// Asking first keeps the usual call free of writes.
		_, err := s.client.CoreV1().Namespaces().Get(ctx, r.Namespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name:   r.Namespace,
				Labels: map[string]string{managedLabel: "gpulab"},
			}}
			_, err = s.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("namespace %s: %w", r.Namespace, err)
		}
	}
	return nil
}

// restGetter gives Helm its connection. Helm's usual one keeps a discovery
// cache below the home folder; this one keeps it in memory and is shared.
type restGetter struct {
	config    *rest.Config
	loader    clientcmd.ClientConfig
	cache     discovery.CachedDiscoveryInterface
	mapper    meta.ResettableRESTMapper
	namespace string
}

// in returns a getter whose objects without a namespace go to the given one.
func (g *restGetter) in(namespace string) *restGetter {
	other := *g
	other.namespace = namespace
	return &other
}

// ToRESTConfig implements genericclioptions.RESTClientGetter.
func (g *restGetter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

// ToDiscoveryClient implements genericclioptions.RESTClientGetter.
func (g *restGetter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	return g.cache, nil
}

// ToRESTMapper implements genericclioptions.RESTClientGetter.
func (g *restGetter) ToRESTMapper() (meta.RESTMapper, error) { return g.mapper, nil }

// ToRawKubeConfigLoader implements genericclioptions.RESTClientGetter.
func (g *restGetter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return namespaced{g.loader, g.namespace}
}

// rawConfig is named here because clientcmd.ClientConfig has a method of its own
// name, which an embedded field of that name would hide.
type rawConfig = clientcmd.ClientConfig

// namespaced is a client configuration with a default namespace of its own.
type namespaced struct {
	rawConfig
	namespace string
}

// Namespace implements clientcmd.ClientConfig.
func (n namespaced) Namespace() (string, bool, error) { return n.namespace, true, nil }

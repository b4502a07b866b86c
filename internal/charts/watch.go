package charts

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// watched are the kinds of which Watch tells. Only their metadata is read:
// there are secrets among them.
var watched = []schema.GroupVersionResource{
	{Version: "v1", Resource: "configmaps"},
	{Version: "v1", Resource: "limitranges"},
	{Version: "v1", Resource: "namespaces"},
	{Version: "v1", Resource: "resourcequotas"},
	{Version: "v1", Resource: "secrets"},
	{Version: "v1", Resource: "serviceaccounts"},
	{Version: "v1", Resource: "services"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "mutatingwebhookconfigurations"},
	{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
	{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
	{Group: "apps", Version: "v1", Resource: "daemonsets"},
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Group: "node.k8s.io", Version: "v1", Resource: "runtimeclasses"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	{Group: "scheduling.k8s.io", Version: "v1", Resource: "priorityclasses"},
}

// Watch calls changed after an object of a release, or one that gpulab itself
// has labelled as its own, was changed or deleted, by whomever: also after
// Apply's own changes. It returns when ctx ends.
func (m *Manager) Watch(ctx context.Context, changed func()) error {
	s, err := m.open()
	if err != nil {
		return err
	}
	shared, err := s.getter.ToRESTConfig()
	if err != nil {
		return err
	}
	config := rest.CopyConfig(shared)
	config.Timeout = 0 // a watch lasts
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the cluster: %w", err)
	}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, metav1.NamespaceAll,
		func(o *metav1.ListOptions) {
			o.LabelSelector = managedLabel + " in (Helm, gpulab)"
		})
	for _, kind := range watched {
		_, err := factory.ForResource(kind).Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(before, now any) {
				if edited(before, now) {
					changed()
				}
			},
			DeleteFunc: func(any) { changed() },
		})
		if err != nil {
			return fmt.Errorf("watching %s: %w", kind.Resource, err)
		}
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// edited leaves out changes of an object's status. Most kinds count the others;
// of the rest, a quota's status changes with every pod.
func edited(before, now any) bool {
	a, aok := before.(*metav1.PartialObjectMetadata)
	b, bok := now.(*metav1.PartialObjectMetadata)
	if !aok || !bok {
		return true
	}
	if b.Generation == 0 {
		return a.ResourceVersion != b.ResourceVersion && !onlyStatus(a, b)
	}
	return a.Generation != b.Generation || !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations)
}

// onlyStatus goes by the record of who wrote what when.
func onlyStatus(before, now *metav1.PartialObjectMetadata) bool {
	written := func(o *metav1.PartialObjectMetadata, status bool) (list []metav1.ManagedFieldsEntry) {
		for _, entry := range o.ManagedFields {
			if (entry.Subresource == "status") == status {
				list = append(list, entry)
			}
		}
		return list
	}
	return equality.Semantic.DeepEqual(written(before, false), written(now, false)) &&
		!equality.Semantic.DeepEqual(written(before, true), written(now, true)) &&
		maps.Equal(before.Labels, now.Labels) && maps.Equal(before.Annotations, now.Annotations)
}

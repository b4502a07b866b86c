package charts

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/kube"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
)

// drift compares the objects of a manifest with the live ones and says what
// differs, "" if nothing does. Only what the manifest states counts: labels,
// sidecars or status that others add are theirs.
func (j *job) drift(ctx context.Context, client *kubeClient, manifest string) (string, error) {
	objects, err := client.Build(strings.NewReader(manifest), false)
	if err != nil {
		return "", fmt.Errorf("reading the stored manifest: %w", err)
	}
	var found []string
	for _, object := range objects {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		what, err := objectDrift(object)
		if err != nil {
			return "", fmt.Errorf("comparing %s: %w", label(object), err)
		}
		if what != "" {
			found = append(found, label(object)+" "+what)
		}
	}
	return strings.Join(found, ", "), nil
}

// objectDrift lets the API server apply the object without keeping the result:
// so defaults and notations (0.1 and 100m) are its business, not ours. It is not
// asked where the live object has everything word for word; to apply a large
// definition is much work.
func objectDrift(object *resource.Info) (string, error) {
	helper := resource.NewHelper(object.Client, object.Mapping).DryRun(true).WithFieldManager("gpulab-drift")
	live, err := helper.Get(object.Namespace, object.Name)
	if apierrors.IsNotFound(err) {
		return "was missing", nil
	}
	if err != nil {
		return "", err
	}
	before, err := stated(live)
	if err != nil {
		return "", err
	}
	manifest, err := stated(object.Object)
	if err != nil {
		return "", err
	}
	if saysAll(before, manifest) {
		return "", nil
	}
	wanted, err := runtime.Encode(unstructured.UnstructuredJSONScheme, object.Object)
	if err != nil {
		return "", err
	}
	force := true
	applied, err := helper.Patch(object.Namespace, object.Name, types.ApplyPatchType, wanted,
		&metav1.PatchOptions{Force: &force})
	if err != nil {
		return "", err
	}
	after, err := stated(applied)
	if err != nil {
		return "", err
	}
	if path := firstDifference(before, after); path != "" {
		return "was changed (" + path + ")", nil
	}
	return "", nil
}

// stated is the part of an object that a manifest can state.
func stated(object runtime.Object) (map[string]any, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	part := maps.Clone(content)
	delete(part, "status")
	names := map[string]any{}
	metadata, _ := content["metadata"].(map[string]any)
	for _, key := range []string{"labels", "annotations"} {
		if value := metadata[key]; value != nil {
			names[key] = value
		}
	}
	part["metadata"] = names
	return part, nil
}

// saysAll reports whether live has all that wanted says, in the same words: then to
// apply that changes nothing. A list has to be the same whole: most are replaced as
// one, and what somebody added to an element of a policy's or role's would go.
func saysAll(live, wanted any) bool {
	want, isMap := wanted.(map[string]any)
	if !isMap {
		return reflect.DeepEqual(live, wanted)
	}
	has, ok := live.(map[string]any)
	for key, value := range want {
		if v, there := has[key]; !there || !saysAll(v, value) {
			return false
		}
	}
	return ok
}

// firstDifference names the first place where two values differ, "" if none
// does. It gives the place only: the values may be secrets.
func firstDifference(a, b any) string {
	left, lok := a.(map[string]any)
	right, rok := b.(map[string]any)
	if !lok || !rok {
		if reflect.DeepEqual(a, b) {
			return ""
		}
		return "value"
	}
	keys := map[string]bool{}
	for key := range left {
		keys[key] = true
	}
	for key := range right {
		keys[key] = true
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		switch deeper := firstDifference(left[key], right[key]); deeper {
		case "":
		case "value":
			return key
		default:
			return key + "." + deeper
		}
	}
	return ""
}

// label names an object for a person: "service hub".
func label(object *resource.Info) string {
	return kindOf(object) + " " + object.Name
}

// kindOf returns the kind of an object in lower case.
func kindOf(object *resource.Info) string {
	return strings.ToLower(object.Mapping.GroupVersionKind.Kind)
}

// workloads leaves those objects that become ready by running pods.
func workloads(objects kube.ResourceList) kube.ResourceList {
	return objects.Filter(func(object *resource.Info) bool {
		switch kindOf(object) {
		case "deployment", "daemonset":
			return true
		}
		return false
	})
}
